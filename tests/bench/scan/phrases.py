"""What every tenant's traffic shares: openers, closers, questions, and forms with other values."""

import random

OPENERS = (
    "Sure! Here is a summary of the document you provided.",
    "Certainly. Based on the context above, the main points are the following.",
    "Thank you for your question. Let me walk you through this step by step.",
    "I have reviewed the file that you attached, and here is what I found.",
    "Here's a detailed answer, with the relevant passages quoted where they matter.",
    "Great question! The short answer is yes, with a few caveats that are worth knowing.",
    "As an AI language model, I cannot verify this independently, but the text says the following.",
    "Below is the requested output. Please let me know if you would like me to change the format.",
    "Let's break this problem down into smaller parts and look at each of them in turn.",
    "I found several places in the retrieved documents that are relevant to your request.",
)
CLOSERS = (
    "Let me know if you have any further questions or if you would like me to go into more detail.",
    "I hope this helps! Feel free to ask if anything is unclear or if you need more information.",
    "Please note that this answer is for general information only and is not legal, medical or"
    " financial advice; consult a qualified professional before you act on it.",
    "Would you like me to continue with the next section, or shall I expand on one point?",
    "If you share more of the surrounding code, I can give you a more precise recommendation.",
    "This response was generated automatically and may contain errors. Verify important details.",
)
QUESTIONS = (
    "Summarise this for me in a few sentences.",
    "What does this mean for our setup?",
    "Explain the part that I marked and give an example.",
    "Rewrite this so that a new colleague understands it.",
    "Which of these points contradict each other?",
    "Find the mistake and tell me how to fix it.",
    "Translate the key terms and keep the rest as it is.",
    "Now do the same for the next part, please.",
)
_FORMS = (
    "Dear {name}, your order {code} was handed to the carrier on {date}. The total of {amount} EUR"
    " will be charged to the card that ends in {digits}. You can follow the parcel with {code2}.",
    "Ticket {code} was opened by {name} on {date} with priority {digits}. The customer reports that"
    " the service {code2} answers with status {digits}; the account balance is {amount} EUR.",
    "This is to confirm that {name} has an appointment on {date} at counter {digits}. Please bring"
    " the reference {code} and the fee of {amount} EUR in cash or by card.",
    "Invoice {code} of {date} over {amount} EUR is overdue. {name}, please transfer it within"
    " fourteen days and state the reference {code2} so that we can match your payment.",
)
_FIRST = (
    "Ana",
    "Boris",
    "Chidi",
    "Dalia",
    "Emre",
    "Freya",
    "Goran",
    "Hana",
    "Inga",
    "Jonas",
    "Kaveh",
    "Lotte",
    "Mirko",
    "Nadia",
    "Oskar",
    "Priya",
    "Quinn",
    "Rosa",
    "Sven",
    "Tariq",
)
_LAST = (
    "Abendroth",
    "Bellamy",
    "Castellan",
    "Dvorsky",
    "Eisenbart",
    "Fairclough",
    "Grimaldi",
    "Hollander",
    "Ivanenko",
    "Jankovic",
    "Kestrel",
    "Lindqvist",
    "Marchetti",
    "Novotny",
)


def filled_form(rng: random.Random) -> str:
    """Return one of the forms with values of its own."""
    return rng.choice(_FORMS).format(
        name=f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
        code=f"{rng.choice('ABCDEFGH')}{rng.choice('KLMNPQ')}-{rng.randrange(10**6):06}",
        code2=f"{rng.randrange(16**10):010x}",
        date=f"{rng.randrange(1, 29):02}.{rng.randrange(1, 13):02}.2026",
        amount=f"{rng.randrange(100, 99_999) / 100:.2f}",
        digits=f"{rng.randrange(1000, 9999)}",
    )


def invented(rng: random.Random, characters: int) -> str:
    """Return words that nobody wrote: for logs in which nothing may match by chance."""
    words: list[str] = []
    size = 0
    while size < characters:
        length = rng.randrange(3, 10)
        words.append("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=length)))
        size += length + 1
    return " ".join(words)
