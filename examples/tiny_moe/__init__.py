"""A really trained small MoE, and recordings of its routing; see README.md."""
