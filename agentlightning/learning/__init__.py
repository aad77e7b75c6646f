"""Learning: from a batch of weighted trees to the next version of the weights. It knows no wires, stores or rewards.

``objective`` and ``objectives`` load without torch; everything else here needs it.
"""
