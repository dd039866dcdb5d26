"""Which slots a queued job or operation gets, and why it waits: pure, without a database."""
