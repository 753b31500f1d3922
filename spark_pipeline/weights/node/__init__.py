"""The program that works on a node, where the bytes are. Standard library only, Python 3.10 or later.

It is sent over standard input each time (weights/node_program.py), so nothing is installed on a node and no old
copy can be left there. It knows nothing of the rest of the package: modules here import only each other.
"""
