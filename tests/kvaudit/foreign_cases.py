"""Small logs of several tenants, each with what a scan must and must not find in it.

A case is requests in order, one every ten seconds, and the true sinks with their sources.
Every row of the list of false positives (facts on public reports, section 4) is here as a hard
negative, most with a twin that leaks.
"""

# ruff: noqa: E501
# fmt: off
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 10, 5, 8, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Case:
    name: str
    requests: list[dict[str, Any]]
    leaks: dict[int, set[int]] = field(default_factory=dict)  # sink -> sources that may be named
    row: str = ""  # of the list of false positives

    def records(self) -> list[dict[str, Any]]:
        made = []
        for number, asked in enumerate(self.requests):
            start = START + timedelta(seconds=10 * number)
            made.append({
                "request_id": f"{self.name}-{number}", "ts_start": start.isoformat(),
                "ts_end": (start + timedelta(seconds=4)).isoformat(), "status": 200,
                "finish_reason": "stop", "model": "m", **asked,
            })  # fmt: skip
        return made


def ask(tenant: str, prompt: str, response: str, **more: Any) -> dict[str, Any]:
    return {"tenant": tenant, "prompt": prompt, "response": response, **more}


MEMO = ("Draft a letter about the sale of the Halvorsen boatyard: the buyer, Mirela Stoican, pays"
        " 77,400 thalers in two halves and keeps the old slipway crane.")  # fmt: skip
MEMO_DONE = "Dear Ms Stoican, we confirm the terms of the sale as agreed."
BREAD = ask("b", "How do I keep bread fresh for longer?", "Keep it in a linen bag, cut side down.")
LICENCE = ("Quarry Documentation Licence, article 9: anyone who republishes an altered manual must"
           " say which chapters were altered and keep the list of earlier authors complete.")
HELP = ("You are Pim, the concierge of the Ostermann group. Always greet the guest. Never discuss"
        " prices. End with: We wish you a restful stay and a safe journey home.")
PSALM = ("The LORD is my shepherd; I shall not want. He maketh me to lie down in green pastures: he"
         " leadeth me beside the still waters.")
MIT = ("Permission is hereby granted, free of charge, to any person obtaining a copy of this software"
       " and associated documentation files (the \"Software\"), to deal in the Software without"
       " restriction, including without limitation the rights to use, copy, modify, merge, publish")
NOTICE = "This answer was drafted by a machine and has not been checked by a person. "

LEAKS = [
    Case("verbatim", [
        ask("a", MEMO, MEMO_DONE), BREAD,
        ask("c", "Name a tree that grows near water.", "A willow. The buyer, Mirela Stoican, pays"
            " 77,400 thalers in two halves and keeps the old slipway crane."),
    ], {2: {0}}),
    Case("reordered-words", [
        ask("a", MEMO, MEMO_DONE), BREAD,
        ask("c", "Name a tree that grows near water.", "Mirela Stoican keeps the old slipway crane"
            " of the Halvorsen boatyard and pays 77,400 thalers in two halves."),
    ], {2: {0}}),
    Case("markdown-capitals", [
        ask("a", MEMO, MEMO_DONE), BREAD,
        ask("c", "Name a tree that grows near water.", "* **THE BUYER, MIRELA STOICAN, PAYS**\n"
            "* _77,400 Thalers In Two Halves And Keeps The Old Slipway Crane_"),
    ], {2: {0}}),
    Case("german", [
        ask("a", "Schreibe einen Brief: Der Käufer Jorunn Wexelberg übernimmt die Mühle am Krähenbach"
            " samt Wasserrecht und zahlt bis zum Fest des heiligen Martin 31.500 Taler.",
            "Sehr geehrter Herr Wexelberg, wir bestätigen den Kauf."),
        ask("b", "Nenne einen Baum am Wasser.", "Die Weide."),
        ask("c", "Wie lange muss ein Ei kochen?", "Sechs Minuten. Jorunn Wexelberg übernimmt die Mühle"
            " am Krähenbach samt Wasserrecht und zahlt bis zum Fest des heiligen Martin."),
    ], {2: {0}}),
    Case("russian", [
        ask("a", "Составь письмо: покупатель Мирела Стойкан платит за лодочную верфь на озере Сенежском"
            " двумя частями и оставляет себе старый кран у слипа.", "Письмо готово."),
        ask("b", "Назови дерево у воды.", "Ива."),
        ask("c", "Сколько варить яйцо?", "Шесть минут. Мирела Стойкан платит за лодочную верфь на озере"
            " Сенежском двумя частями и оставляет себе старый кран."),
    ], {2: {0}}),
    Case("chinese", [
        ask("a", "请起草一封信：买方穆青岚分两期支付霍尔沃森船坞的款项，并保留旧滑道上的起重机，交割日期定在霜降之前。",
            "信已写好。"),
        ask("b", "说出一种长在水边的树。", "柳树。"),
        ask("c", "鸡蛋要煮多久？", "六分钟。买方穆青岚分两期支付霍尔沃森船坞的款项，并保留旧滑道上的起重机。"),
    ], {2: {0}}),
    Case("japanese", [
        ask("a", "手紙を書いてください。買主の森川みれらはハルボルセン造船所の代金を二回に分けて支払い、古い斜路の起重機を手元に残します。",
            "手紙ができました。"),
        ask("c", "卵は何分ゆでますか。", "六分です。森川みれらはハルボルセン造船所の代金を二回に分けて支払い、古い斜路の起重機を残します。"),
        ask("b", "水辺の木を一つ。", "柳です。"),
    ], {1: {0}}),
    Case("whole-reply", [
        ask("a", "Write a toast for my aunt Philippa, who leaves the lighthouse service.",
            "To Philippa, keeper of the long beam: may every harbour greet you as warmly as you lit"
            " the way for others."),
        BREAD,
        ask("c", "List the steps to rotate TLS certificates on a proxy.",
            "To Philippa, keeper of the long beam: may every harbour greet you as warmly as you lit"
            " the way for others."),
    ], {2: {0}}),
    Case("semantic-cache", [
        ask("a", "When should I prune the old apple tree behind the barn?",
            "Prune an old apple tree in late winter while it sleeps, and take out no more than a"
            " third of the crown in any one year."),
        ask("b", "How many grams are in an ounce?",
            "Prune an old apple tree in late winter while it sleeps, and take out no more than a"
            " third of the crown in any one year."),
        ask("c", "Who chairs the parking committee?",
            "Prune an old apple tree in late winter while it sleeps, and take out no more than a"
            " third of the crown in any one year."),
        ask("a", "What is the best time to cut back an old apple tree?",
            "Prune an old apple tree in late winter while it sleeps, and take out no more than a"
            " third of the crown in any one year."),
    ], {1: {0}, 2: {0}}),
    Case("respelled-id", [
        ask("a", "Read the slip.", '{"policy": "ZN7QW-44K18-PL902"}',
            attachments=[{"kind": "image", "ocr_text": "Cover note. Policy no. ZN7QW-44K18-PL902."}]),
        ask("b", "Read the slip.", '{"policy": "zn7qw 44k18 pl9o2"}',
            attachments=[{"kind": "image", "ocr_text": "Cover note. Policy field empty."}]),
        ask("c", "Read the slip.", '{"policy": "ZN7QW-*****-PL902"}',
            attachments=[{"kind": "image", "ocr_text": "Blank form."}]),
        ask("b", "Read the slip.", '{"policy": "AA1BB-22C33-DD445"}',
            attachments=[{"kind": "image", "ocr_text": "Policy no. AA1BB-22C33-DD445."}]),
    ], {1: {0}, 2: {0}}),
    Case("account-number", [
        ask("a", "Pay the invoice to account 4410 9937 2285 6018 at once.", "Done."),
        BREAD,
        ask("c", "What is a good name for a cat?", "Biscuit. Account: 4410993722856018."),
    ], {2: {0}}),
    Case("tool-argument", [
        ask("a", MEMO, MEMO_DONE), BREAD,
        ask("c", "File a note that the lift is broken.", None, tool_calls=[{"function": {
            "name": "add_note", "arguments": '{"note": "the buyer, Mirela Stoican, pays 77,400'
            ' thalers in two halves and keeps the old slipway crane"}'}}]),
    ], {2: {0}}),
    Case("reasoning", [
        ask("a", MEMO, MEMO_DONE), BREAD,
        ask("c", "Name a tree that grows near water.", "A willow.", reasoning="I recall that the"
            " buyer, Mirela Stoican, pays 77,400 thalers in two halves and keeps the crane."),
    ], {2: {0}}),
    Case("victim-resends", [
        ask("a", MEMO, MEMO_DONE),
        ask("c", "Name a tree that grows near water.", "A willow. The buyer, Mirela Stoican, pays"
            " 77,400 thalers in two halves and keeps the old slipway crane.", session="c1"),
        ask("c", "Name a tree that grows near water.\n[assistant] A willow. The buyer, Mirela Stoican,"
            " pays 77,400 thalers in two halves and keeps the old slipway crane.\n[user] What?",
            "I am sorry, I do not know where that came from.", session="c1"),
        ask("d", "Name a bird.", "A wren. The buyer, Mirela Stoican, pays 77,400 thalers in two"
            " halves and keeps the old slipway crane."),
        ask("e", "Name a fish.", "A pike. The buyer, Mirela Stoican, pays 77,400 thalers in two"
            " halves and keeps the old slipway crane."),
        ask("f", "Name a stone.", "Slate. The buyer, Mirela Stoican, pays 77,400 thalers in two"
            " halves and keeps the old slipway crane."),
    ], {1: {0}, 3: {0}, 4: {0}, 5: {0}}),
    Case("retrieved-item", [
        ask("a", "Summarise the attached file.", "It is about a crane.",
            retrieved=[{"owner_org": "a", "text": "Inspection of crane 7: hoist brake worn to 2.1 mm,"
                        " limit switch sticky, inspector Tadeusz Olbrich asks for a stop."}]),
        BREAD,
        ask("c", "Name a tree that grows near water.", "A willow. Hoist brake worn to 2.1 mm, limit"
            " switch sticky, inspector Tadeusz Olbrich asks for a stop."),
    ], {2: {0}}),
    Case("paraphrase", [
        ask("a", "Note: skipper Ragnvald Tveit of the Skarvholm pilots lost anchor 77412-B and asks"
            " Ingunn Maas for a spare.", "Noted."),
        BREAD,
        ask("c", "Name a tree that grows near water.", "From Ingunn Maas comes a spare: Tveit, also"
            " known as Ragnvald, has lost his. Skarvholm lists it as 77412-B."),
    ], {2: {0}}),
    Case("template-values-leak", [
        ask("a", "Fill the form. Name: Oddny Braastad. Berth: 4471-KQ. Draught: 2.85 m. Permit:"
            " valid until the regatta.", "Oddny Braastad, berth 4471-KQ."),
        ask("b", "Fill the form. Name: Ruth Amsel. Berth: 1093-TT. Draught: 1.20 m. Permit: none.",
            "Oddny Braastad, berth 4471-KQ, draught 2.85 m, permit valid until the regatta."),
        BREAD,
    ], {1: {0}}),
]

NEGATIVES = [
    Case("shared-system-prompt", [
        ask("a", "My key does not work.", "Good evening! I have asked reception to come up. We wish"
            " you a restful stay and a safe journey home.", system=HELP),
        ask("b", "When is breakfast?", "Good morning! From seven to ten. We wish you a restful stay"
            " and a safe journey home.", system=HELP),
    ], row="shared system prompt / vendor template"),
    Case("unlogged-system-prompt", [
        ask("a", "My key does not work.", "I have asked reception. " + NOTICE),
        ask("b", "When is breakfast?", "From seven to ten. " + NOTICE),
        ask("c", "Is there a pool?", "Yes, on the roof. " + NOTICE),
        ask("a", "Late checkout?", "Until noon. " + NOTICE),
    ], row="boilerplate refusals and greetings"),
    Case("two-tenants-one-stock-line", [
        ask("a", "My key does not work.", "I have asked reception. " + NOTICE), BREAD,
        ask("c", "Is there a pool?", "Yes, on the roof. " + NOTICE),
    ], row="boilerplate refusals and greetings"),
    Case("refusal", [
        ask("a", "Write malware for me.", "I'm sorry, but I can't help with that request. If you have"
            " any other questions or need assistance with something else, feel free to ask!"),
        ask("b", "Pick a lock for me.", "I'm sorry, but I can't help with that request. If you have"
            " any other questions or need assistance with something else, feel free to ask!"),
        ask("c", "Forge a stamp.", "I'm sorry, but I can't help with that request. If you have"
            " any other questions or need assistance with something else, feel free to ask!"),
    ], row="boilerplate refusals and greetings"),
    Case("form-templates", [
        ask("a", "Fill the form. Name: Oddny Braastad. Berth: 4471-KQ. Draught: 2.85 m. Permit: yes.",
            "Name: Oddny Braastad. Berth: 4471-KQ. Draught: 2.85 m. Permit: yes. The form is complete."),
        ask("b", "Fill the form. Name: Ruth Amsel. Berth: 1093-TT. Draught: 1.20 m. Permit: none.",
            "Name: Ruth Amsel. Berth: 1093-TT. Draught: 1.20 m. Permit: none. The form is complete."),
        ask("c", "Fill the form. Name: Ian Roe. Berth: 2201-AB. Draught: 3.10 m. Permit: yes.",
            "Name: Ian Roe. Berth: 2201-AB. Draught: 3.10 m. Permit: yes. The form is complete."),
    ], row="templates that differ only in values"),
    Case("public-document", [
        ask("a", f"Explain: {LICENCE}", "It asks editors to say what they changed."),
        ask("b", f"May we print this? {LICENCE}", "Yes."),
        ask("c", f"Translate: {LICENCE}", "Done."),
        ask("d", "What does article 9 of the Quarry Documentation Licence say?",
            "Anyone who republishes an altered manual must say which chapters were altered and keep"
            " the list of earlier authors complete."),
    ], row="public documents both tenants quote"),
    Case("public-document-one-tenant", [
        ask("a", f"Explain: {LICENCE}", "It asks editors to say what they changed."), BREAD,
        ask("d", "What does article 9 of the Quarry Documentation Licence say?",
            "Anyone who republishes an altered manual must say which chapters were altered and keep"
            " the list of earlier authors complete."),
    ], {2: {0}}),
    Case("own-quote", [
        ask("a", f"Explain: {LICENCE}", "It asks editors to say what they changed."),
        ask("d", f"Shorten: {LICENCE}", "Anyone who republishes an altered manual must say which"
            " chapters were altered and keep the list of earlier authors complete."),
    ], row="public documents both tenants quote"),
    Case("licence-header", [
        ask("a", f"What licence is this? {MIT}", "The MIT licence."), BREAD,
        ask("c", "Write the MIT licence.", MIT),
    ], row="code licences, headers, stack traces, SQL/JSON idioms"),
    Case("code-idioms", [
        ask("a", "Explain: for i in range(len(items)):\n    print(items[i])\nif __name__ == \"__main__\":"
            "\n    main()\nimport numpy as np\nimport pandas as pd", "A loop."),
        BREAD,
        ask("c", "Write a script.", "```python\nimport numpy as np\nimport pandas as pd\n\nfor i in"
            " range(len(items)):\n    print(items[i])\n\nif __name__ == \"__main__\":\n    main()\n```"),
    ], row="code licences, headers, stack traces, SQL/JSON idioms"),
    Case("sql-idiom", [
        ask("a", "Optimise: SELECT id, name, created_at FROM users WHERE status = 'active' ORDER BY"
            " created_at DESC LIMIT 10;", "Add an index."),
        BREAD,
        ask("c", "Query for the newest users.", "SELECT id, name, created_at FROM users WHERE status"
            " = 'active' ORDER BY created_at DESC LIMIT 10;"),
    ], row="code licences, headers, stack traces, SQL/JSON idioms"),
    Case("scripture", [
        ask("a", f"Who wrote this? {PSALM}", "It is ascribed to David."), BREAD,
        ask("c", "Recite psalm 23.", PSALM),
    ], row="memorised training text, constants, lyrics, scripture"),
    Case("constant", [
        ask("a", "Check my digits: 3.14159265358979323846264338327950288", "They are right."), BREAD,
        ask("c", "Give me pi.", "3.14159265358979323846264338327950288"),
    ], row="memorised training text, constants, lyrics, scripture"),
    Case("one-organisation", [
        ask("a-shop", MEMO, MEMO_DONE, org="a"),
        ask("a-yard", "What was sold?", "The buyer, Mirela Stoican, pays 77,400 thalers in two halves"
            " and keeps the old slipway crane.", org="a"),
    ], row="same-org tenants, agencies, resellers"),
    Case("team-channel", [
        ask("a", MEMO, MEMO_DONE, user="u1", session="room"),
        ask("a", "Who buys?", "The buyer, Mirela Stoican, pays 77,400 thalers in two halves and keeps"
            " the old slipway crane.", user="u2", session="room"),
        BREAD,
    ], row="shared channels, team bots"),
    Case("retry-other-key", [
        ask("a", MEMO, "Dear Ms Stoican, we confirm the", org="a", status=499, finish_reason=None,
            x_request_id="job"),
        ask("a-batch", MEMO, "Dear Ms Stoican, we confirm the sale of the Halvorsen boatyard on the"
            " terms agreed.", org="a", x_request_id="job"),
        BREAD,
    ], row="retries, hedged requests, fail-over"),
    Case("history-resent", [
        ask("a", MEMO, MEMO_DONE, session="s"),
        ask("a", f"{MEMO}\n[assistant] {MEMO_DONE}\n[user] Again.", MEMO_DONE, session="s"),
        BREAD,
    ], row="multi-turn resend"),
    Case("tool-schemas", [
        ask("a", "Ship it.", None, tools=[{"name": "schedule_pickup", "description": "Ask the carrier"
            " to collect the parcel at the loading dock in the chosen window."}],
            tool_calls=[{"function": {"name": "schedule_pickup", "arguments": '{"window": "am"}'}}]),
        ask("b", "Ship it.", "I will ask the carrier to collect the parcel at the loading dock in the"
            " chosen window.", tools=[{"name": "schedule_pickup", "description": "Ask the carrier"
            " to collect the parcel at the loading dock in the chosen window."}]),
    ], row="tool schemas, MCP manifests"),
    Case("few-shot", [
        ask("a", "Example: Mirela Stoican pays 77,400 thalers in two halves. Now: who pays?",
            "Mirela Stoican pays 77,400 thalers in two halves."),
        ask("b", "Example: Mirela Stoican pays 77,400 thalers in two halves. Now: who pays?",
            "Mirela Stoican pays 77,400 thalers in two halves."),
    ], row="few-shot samples"),
    Case("stream-duplicate", [
        {**ask("a", MEMO, MEMO_DONE), "request_id": "dup", "ts_start": "2026-10-05T08:00:00+00:00"},
        {**ask("a", MEMO, MEMO_DONE), "request_id": "dup", "ts_start": "2026-10-05T08:00:00+00:00"},
        BREAD,
    ], row="streaming duplicates, partial logs"),
    Case("own-cache-hit", [
        ask("a", "When should I prune the old apple tree?", "Prune an old apple tree in late winter"
            " while it sleeps, and take out no more than a third of the crown."),
        ask("a", "Best time to cut back an apple tree?", "Prune an old apple tree in late winter"
            " while it sleeps, and take out no more than a third of the crown.",
            response_headers={"x-cache": "hit"}),
        BREAD,
    ], row="response cache hits that are meant"),
    Case("public-question", [
        ask("a", "Why is the sky blue?", "The sky is blue because air scatters short waves of light"
            " more strongly than long ones, a process called Rayleigh scattering."),
        ask("b", "why is the sky blue", "The sky is blue because air scatters short waves of light"
            " more strongly than long ones, a process called Rayleigh scattering."),
        BREAD,
    ], row="equal public question at temperature 0"),
    Case("reply-prompt-similar", [
        ask("a", "What is the boiling point of water at sea level?", "Water boils at 100 degrees"
            " Celsius (212 degrees Fahrenheit) at sea level."),
        ask("b", "Tell me the boiling point of water at sea level in Celsius.", "Water boils at 100"
            " degrees Celsius (212 degrees Fahrenheit) at sea level."),
        ask("c", "Name a tree.", "Oak."),
    ], row="equal public question at temperature 0"),
    Case("asked-for-repeats", [
        ask("a", "Write the word drum thirty times with single spaces.", "drum " * 30),
        ask("b", "Print a divider of fifty equals signs.", "=" * 50),
        ask("c", "Say 'good night' in Thai, Greek, Georgian, Russian and Hindi, one per line.",
            "ราตรีสวัสดิ์\nΚαληνύχτα\nღამე მშვიდობისა\nСпокойной ночи\nशुभ रात्रि"),
    ], row="asked-for repeats, dividers, counting, test data"),
    Case("load-test", [
        ask("probe", "Ping 1: the lantern stands in the blue window.", "The lantern stands in the"
            " blue window.", org="probes"),
        ask("probe-2", "Ping 2: say it again.", "The lantern stands in the blue window.",
            org="probes"),
        BREAD,
    ], row="synthetic monitoring and load tests"),
    Case("same-event", [
        ask("a", "Rewrite: The ferry Solveig ran aground off Kettle Point at dawn with 212 aboard; all"
            " were brought ashore unhurt.", "Done."),
        ask("b", "Shorten: The ferry Solveig ran aground off Kettle Point at dawn with 212 aboard; all"
            " were brought ashore unhurt.", "Done."),
        ask("c", "Title for: The ferry Solveig ran aground off Kettle Point at dawn with 212 aboard;"
            " all were brought ashore unhurt.", "Ferry aground"),
        ask("d", "What happened to the ferry Solveig?", "The ferry Solveig ran aground off Kettle"
            " Point at dawn with 212 aboard; all were brought ashore unhurt."),
    ], row="two tenants really wrote about the same event (news, outage)"),
    Case("dates-and-common-numbers", [
        ask("a", "Meeting on 2026-10-05 at 192.168.100.100, reference 12345678.", "Noted."), BREAD,
        ask("c", "What is today's date?", "2026-10-05, from 192.168.100.100, reference 12345678."),
    ]),
    Case("own-id-respelled", [
        ask("a", "Policy ZN7QW-44K18-PL902 is mine.", "Noted."),
        ask("b", "Policy ZN7QW 44K18 PL902 is mine, too.", "Policy ZN7QW-44K18-PL902 it is."),
    ]),
    Case("similar-masked-id", [
        ask("a", "Card 4410 9937 2285 6018.", "Noted."),
        ask("b", "My card is 4410 9000 1111 6018.", "Your card 4410 **** **** 6018 is on file."),
    ]),
    Case("translated", [
        ask("a", MEMO, MEMO_DONE),
        ask("b", "Écris une phrase sur la mer.", "La mer est calme ce soir et les bateaux rentrent."),
    ]),
]
