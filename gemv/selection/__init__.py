"""Which kernel a problem gets, and with which constants: the tables and what reads them."""
