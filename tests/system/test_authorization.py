"""Every RPC and route, callers by uid, certificate and token, what is theirs, what isn't and what isn't there: what they are told is what the model says."""

import os

import authorization
import pytest


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_every_call_is_answered_as_the_model_of_access_says(bare):
    asked = authorization.Asked(bare)
    asked.start()
    cells, wrong = asked.ask_all()
    assert cells > 1000
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_who_comes_by_a_token_has_its_scopes_of_its_owners_rights(bare):
    asked = authorization.AskedByTokens(bare)
    asked.start()
    cells, wrong = asked.ask_all()
    assert cells > 500
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_a_certificate_is_its_users_its_hosts_or_nobodys_any_more(bare):
    asked = authorization.AskedByCertificates(bare)
    asked.start()
    cells, wrong = asked.ask_all()
    assert cells > 2000
    assert not wrong, "\n".join(wrong)
