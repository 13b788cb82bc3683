"""See the leak with nothing but urllib: fill a server under one key, trigger it under another.

Run it against `kvaudit serve --port 8000 --fault reject-not-propagated`:

    python leak_by_hand.py http://127.0.0.1:8000

It prints what the second key got, and ends with 1 when that holds the first key's words.
"""

import json
import sys
import threading
import urllib.error
import urllib.request

# Longer than the prefill pool admits, shorter than the context: the band of the incident.
FILL_TOKENS, TRIGGER_TOKENS = 1316, 1330
FILLS = 3


def call(url, path, body, key):
    """Return status and decoded body of one POST."""
    request = urllib.request.Request(
        url + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def text_of(url, line, tokens):
    """Return numbered lines of about so many tokens by the server's own count, never more."""
    text = ""
    for number in range(10_000):
        longer = text + line(number)
        if call(url, "/tokenize", {"prompt": longer}, "counting")[1]["count"] > tokens:
            return text
        text = longer
    raise AssertionError("a line without tokens")


def cut_to(url, text, tokens):
    """Return the text's first so many tokens."""
    ids = call(url, "/tokenize", {"prompt": text}, "counting")[1]["tokens"]
    assert len(ids) >= tokens
    return ids[:tokens]


def leak(url):
    """Return the first key's text, and status and answer that the second key got."""
    secret = text_of(
        url, lambda n: f"The vault word of room {n} is walnut {n * 37}.\n", FILL_TOKENS
    )
    fill = {"prompt": secret, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    fills = [
        threading.Thread(target=call, args=(url, "/v1/completions", fill, "first-key"))
        for _ in range(FILLS)
    ]
    for thread in fills:
        thread.start()
    for thread in fills:
        thread.join()
    harmless = text_of(url, lambda n: f"Bread needs flour, water and {n} hours.\n", 1400)
    trigger = {
        "prompt": cut_to(url, harmless, TRIGGER_TOKENS), "max_tokens": 40, "temperature": 0,
    }  # fmt: skip
    status, body = call(url, "/v1/completions", trigger, "second-key")
    answer = body["choices"][0]["text"] if status == 200 else body["error"]["message"]
    return secret, status, answer


def shared(secret, answer, length=12):
    """Return a run of the secret that stands in the answer; None if none does."""
    runs = (answer[at : at + length] for at in range(max(0, len(answer) - length)))
    return next((run for run in runs if run in secret), None)


def main():
    """Run once against the URL of the command line."""
    secret, status, answer = leak(sys.argv[1])
    found = shared(secret, answer)
    print(f"HTTP {status}: {answer!r}")
    print(f"of the first key's text: {found!r}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
