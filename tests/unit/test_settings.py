import pytest

from pipeline.errors import ConfigError
from pipeline.settings import Settings


def test_an_empty_environment_gives_the_defaults():
    assert Settings.read({"PATH": "/bin"}) == Settings()


def test_a_variable_sets_its_field():
    assert Settings.read({"VEILSTREAM_KAFKA": "a:1,b:2"}).kafka == "a:1,b:2"


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(
        ConfigError, match="VEILSTREAM_KAFKAA is unknown; did you mean VEILSTREAM_KAFKA"
    ) as caught:
        Settings.read({"VEILSTREAM_KAFKAA": "a:1"})
    assert "`unset VEILSTREAM_KAFKAA`" in str(caught.value)
    assert "docs/operations.md#settings" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("LEDGER_TOPIC", "off", "veil.ledger"),
        ("LEDGER_TOPIC", "veil.ledger v1", "letters, digits"),
        ("KAFKA_SECURITY", "TLS", "SASL_SSL"),
        ("KAFKA_SASL", "GSSAPI", "SCRAM-SHA-512"),
        ("REDIS", "localhost:6379", "redis://"),
        ("KAFKA", "localhost", "host:port"),
    ],
)
def test_a_wrong_value_is_refused_and_the_allowed_ones_are_named(name, value, allowed):
    with pytest.raises(ConfigError, match=allowed):
        Settings.read({f"VEILSTREAM_{name}": value})


def test_secrets_are_not_shown():
    shown = repr(
        Settings.read({"VEILSTREAM_KAFKA_PASSWORD": "hunter2", "VEILSTREAM_REDIS_PASSWORD": "x9"})
    )
    assert "hunter2" not in shown
    assert "x9" not in shown


def test_files_of_rooted_settings_are_the_same_in_another_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = Settings(kafka_ca="ca.pem").rooted()
    monkeypatch.chdir("/")
    assert found.home == tmp_path / ".veilstream"
    assert found.kafka_ca == str(tmp_path / "ca.pem")
    assert found.kafka_certificate == found.study_key == ""
