"""Reader of enroll requests. Unauthenticated input: nothing but strict JSON gets as far as the message's fields."""

from pydantic import ValidationError

from agent.common import strict_json
from agent.wire.enroll import EnrollRequest
from mirbad.kernel.errors import InvalidRequest

_MOST_PROBLEMS = 10


def read_enroll_request(body: bytes) -> EnrollRequest:
    """Return the request in `body`. Raises InvalidRequest; its text repeats nothing of the body."""
    try:
        return EnrollRequest.model_validate(strict_json.parse_object(body))
    except strict_json.BadJson as error:
        raise InvalidRequest(str(error)) from None
    except ValidationError as error:
        problems = [
            {
                "code": "invalid",
                "message": f"{item['msg']}.",
                "field": ".".join(str(part) for part in item["loc"]),
            }
            for item in error.errors()[:_MOST_PROBLEMS]
        ]
        text = " ".join(f"{problem['field']}: {problem['message']}" for problem in problems)
        raise InvalidRequest(text, problems=problems) from None
