"""The paper's figures from our records, one function each; importing its modules registers them with `output.draws`."""
