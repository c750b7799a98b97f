"""Examples that make and use data of their own; nothing of the product imports them."""
