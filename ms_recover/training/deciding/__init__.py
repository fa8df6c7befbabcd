"""What a resume and a saver decide, from what all ranks know: no MindSpore, no disk, no clock, no process."""
