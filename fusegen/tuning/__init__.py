"""What is measured to be faster than what schedules do by themselves: the search, and the table of what it found."""
