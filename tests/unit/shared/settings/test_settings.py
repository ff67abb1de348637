"""Settings from the environment: bounds, caps, fixed names, clear errors."""

from pathlib import Path

import pytest

from fleet_shared.settings import BadSetting, Role, Settings, load_models, load_process, load_settings, options

WEB = {"DATABASE_URL": "sqlite:////tmp/x.db", "REDIS_URL": "redis://h", "FLEET_SECRET_KEY": "k"}


def test_the_declared_defaults_are_those_in_force_and_lie_within_their_bounds() -> None:
    settings = load_settings({}).settings
    for key, option in options().items():
        assert settings.value(key) == option.default
        assert option.check(option.default) == option.default
        assert option.help


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("FLEET_RLM_MAX_ITERATIONS", "abc", "must be a whole number"),
        ("FLEET_RLM_MAX_ITERATIONS", "101", "must be at most 100"),
        ("FLEET_RLM_RECURSION_ENABLED", "perhaps", "must be true or false"),
        ("FLEET_SANDBOX_NETWORK", "all", "must be one of none, allowlist, full"),
        ("FLEET_RLM_MAX_COST_USD", "nan", "must be finite"),
    ],
)
def test_a_bad_value_is_named_in_one_line(variable: str, text: str, problem: str) -> None:
    with pytest.raises(BadSetting) as bad:
        load_settings({variable: text})
    assert str(bad.value) == f"{variable} {problem}"


def test_owners_values_win_up_to_the_cap_and_operators_settings_are_not_theirs() -> None:
    loaded = load_settings({"FLEET_RLM_MAX_ITERATIONS": "12", "FLEET_RLM_MAX_ITERATIONS_MAX": "30"})
    assert loaded.settings.rlm.max_iterations == 12
    chosen = loaded.for_owner({"rlm.max_iterations": 80, "run.lease_s": 1, "gone.setting": 5})
    assert chosen.rlm.max_iterations == 30
    assert chosen.run.lease_s == Settings().run.lease_s


def test_unknown_variables_are_told_and_fixed_names_are_known() -> None:
    assert load_settings({"FLEET_MODEL": "x", "FLEET_RML_X": "1", "HOME": "/"}).unknown == ("FLEET_RML_X",)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"DATABASE_URL": ""}, "DATABASE_URL is not set"),
        ({"DATABASE_URL": "mysql://x"}, "DATABASE_URL has the scheme mysql"),
        ({"DYNO": "web.1"}, "DATABASE_URL names SQLite"),
        ({"REDIS_URL": ""}, "REDIS_URL is not set"),
        ({"REDIS_URL": "http://x"}, "REDIS_URL must start with"),
        ({"PORT": "0"}, "PORT must be a whole number"),
        ({"FLEET_SECRET_KEY": ""}, "FLEET_SECRET_KEY is not set"),
        ({"FLEET_LOG_FORMAT": "xml"}, "FLEET_LOG_FORMAT must be"),
    ],
)
def test_what_a_process_lacks_stops_it_with_one_line(change: dict[str, str], problem: str) -> None:
    with pytest.raises(BadSetting, match=problem):
        load_process(WEB | change, Role.WEB)


def test_addresses_are_read_as_the_platform_means_them() -> None:
    process = load_process(WEB | {"DATABASE_URL": "postgres://u:p@h/d?sslmode=require", "DYNO": "web.1"}, Role.WEB)
    assert process.database_url == "postgresql+psycopg://u:p@h/d?sslmode=require"
    assert "u:p" not in repr(process)
    tls = load_process(WEB | {"REDIS_URL": "rediss://h:1"}, Role.WEB).redis_url
    assert tls == "rediss://h:1?ssl_cert_reqs=required"


def test_models_come_from_variables_and_from_a_file_of_choices(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[[models]]\nname = "big"\nmodel = "openai/b"\napi_key_variable = "BIG_KEY"\ninput_price = 1.0\n')
    environment = {"FLEET_MODEL": "openai/a", "FLEET_MODEL_API_KEY": "s3cret", "FLEET_MODELS_FILE": str(file)}
    with pytest.raises(BadSetting, match="BIG_KEY"):
        load_models(environment)
    models = load_models(environment | {"BIG_KEY": "k2"})
    assert (models.default, models.default_sub, sorted(models.choices)) == ("openai/a", "openai/a", ["big", "openai/a"])
    assert "s3cret" not in repr(models)
    other = load_models({"FLEET_MODEL": "openai/a", "FLEET_SUB_MODEL_API_BASE": "http://h/v1"})
    assert other.choices[other.default_sub].endpoint.api_base == "http://h/v1"
    assert other.choices[other.default].endpoint.api_base is None


def test_a_missing_or_odd_model_is_named() -> None:
    with pytest.raises(BadSetting, match="FLEET_MODEL is not set"):
        load_models({})
    with pytest.raises(BadSetting, match="provider/model"):
        load_models({"FLEET_MODEL": "gpt"})
