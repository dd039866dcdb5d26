"""The plan of supply: which nodes to ask for and to give up, and when nodes leave."""
