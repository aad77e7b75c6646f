"""What is SQLite's own: connections and their pragmas, the thread that writes, how a file is made, and fast inserts.

What is read and written is shared with every other backend: the modules above this room.
"""
