"""What each setting declares about itself: nothing is missing, and names are unique."""

from __future__ import annotations

from openrlhf_tir.config import Config
from openrlhf_tir.config.catalog import all_settings, known_keys, settings_of_env
from openrlhf_tir.config.inactive import inactive_settings
from openrlhf_tir.config.setting import RULES

UNITS = {"_ms": "milliseconds", "_s": "seconds", "_mib": "MiB", "tokens": "tokens"}
"""End of a name -> a word of the unit that it promises."""


def test_every_setting_says_in_sentences_what_it_does():
    for setting in [*all_settings(), *settings_of_env("calc")]:
        description = setting.info.description or ""
        assert description.endswith((".", ".)")), f"{setting.name}: {description}"
        assert not description[0].islower() or description.startswith(
            ("auto", "on", "off", "vLLM", "train.start_wait_s")
        ), setting.name


def test_a_name_that_ends_in_a_unit_has_that_unit():
    for setting in all_settings():
        for end, unit in UNITS.items():
            if setting.name.endswith(end):
                assert unit in setting.metadata.unit, setting.name
                break


def test_rules_have_unique_names_and_belong_to_settings():
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert {rule.setting for rule in RULES} <= set(known_keys())


def test_an_environment_s_settings_have_the_metadata_of_the_common_sections():
    common = {setting.name: setting for setting in all_settings()}
    for setting in settings_of_env("calc"):
        name = setting.name.removeprefix("envs.calc.")
        counterpart = common.get(name) or common.get(f"env.{name}")
        if counterpart is not None:
            assert setting.metadata == counterpart.metadata, setting.name


def test_a_flag_that_repeats_a_default_is_not_reported_as_inactive():
    assert not [*inactive_settings(Config(), dict.fromkeys(known_keys()))]
