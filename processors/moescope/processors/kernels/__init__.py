"""Compiled roll-up kernels. Three passes over a batch: plan, count, apply.

`plan` walks the rows once and settles everything that depends on order: which rows are accepted,
which cell each belongs to, which windows open and close. A *cell* is a run of rows of one request
that falls into the same windows of every kind, so that expert ids are counted once per cell.
`count` turns gap planes into counts per cell. `apply` adds cells to open windows, panes and tasks
and copies out the counts of windows that closed, in the order that `plan` fixed.
"""
