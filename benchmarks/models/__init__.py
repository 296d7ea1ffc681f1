"""Whole models beside eager torch and torch.compile: speed, first calls, accuracy and memory."""
