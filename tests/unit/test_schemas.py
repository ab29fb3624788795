import jsonschema
import pytest

from pipeline.messages.schemas import FOLDER, TYPES, schema, text


@pytest.mark.parametrize("name", TYPES)
def test_the_published_schema_is_the_type_s_own(name):
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text(name)


@pytest.mark.parametrize("name", TYPES)
def test_the_published_schema_is_a_valid_schema(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))
