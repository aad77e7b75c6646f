"""Learning: from a batch of weighted trees to the next version of the weights. It knows no wires, stores or rewards.

``batch``, ``advantages`` and ``loss_config`` load without torch; everything else here needs it.
"""
