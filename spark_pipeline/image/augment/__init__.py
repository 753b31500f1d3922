"""An image made from another one: Ray layered on, or model files grafted in; nothing that the base had may change.

`ray` chooses the version, `resolve` the wheels, `wheels` fetches them, `plan` makes an `Augmentation` of it, `build`
builds that on the head. The programs in `inside/` run in the build, on the images' own Pythons.
"""
