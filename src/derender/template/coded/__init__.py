"""Messages → prompt text for the families that have code in the place of a Jinja chat template, a module each."""
