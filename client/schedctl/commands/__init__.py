"""The commands, a module for each noun. They make calls and show the answers, nothing else."""
