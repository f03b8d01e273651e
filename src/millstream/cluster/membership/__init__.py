"""A broker as a member of its cluster: registration, identity, directories, metadata feed."""
