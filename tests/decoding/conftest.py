import pytest
from languages import Language


@pytest.fixture
def language():
    return Language(1)


@pytest.fixture(params=[1, 2, 3])
def any_language(request):
    """Returns languages in which a search takes different branches."""
    return Language(request.param)
