"""What compiling for a device needs to know, as values that exist without the hardware."""
