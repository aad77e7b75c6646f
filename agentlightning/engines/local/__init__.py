"""The engine inside this process: a slot-based decode loop over the model's own code, on a thread of its own."""
