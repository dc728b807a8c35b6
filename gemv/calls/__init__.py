"""From the arguments of a public function to its result: check, order, execute, remember."""
