"""Who is controller: standing for election, taking over, handing over, and watching the one that leads."""
