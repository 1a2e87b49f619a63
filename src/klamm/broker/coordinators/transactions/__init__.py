"""The transaction coordinator: a pure state machine, its log `__transaction_state`, and the markers that it sends."""
