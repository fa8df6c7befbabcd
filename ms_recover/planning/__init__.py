"""What to do about it: pure; one plan object that is shown, stored and applied."""
