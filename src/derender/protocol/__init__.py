"""What goes over the wire: one module per dialect, and the token protocol between render, generate and derender."""
