"""What finished runs teach of the hardware, for predictions of step time and memory."""
