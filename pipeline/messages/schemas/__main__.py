"""Write the schema files."""

from pipeline.messages.schemas import write

write()
