"""Whole models against eager torch and torch.compile: speed, first calls, accuracy, memory."""
