"""The commands, a module for each noun. They say what to call and what to show; nothing else."""
