"""The one clock of tune and bench: device time, queues of calls, progress."""
