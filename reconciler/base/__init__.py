"""What every package uses: errors, HTTP, sanitizing, logging, the state directory."""
