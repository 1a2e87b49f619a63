"""Which broker is controller: standing for election, taking over, handing over, and watching the active controller."""
