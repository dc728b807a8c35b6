"""Which kernel a problem gets, and with which constants: a formula, machines, exceptions."""
