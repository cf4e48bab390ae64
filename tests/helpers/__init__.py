"""What tests share: cases, small data, subprocesses."""
