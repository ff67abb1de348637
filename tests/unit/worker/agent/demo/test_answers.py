"""The demo model's answers: right numbers for many phrasings over many kinds of files, and honesty about the rest."""

import json
import random
import re
from pathlib import Path

import pytest

from fleet_worker.agent.demo.plan import MARK
from tests.unit.worker.agent.demo.harness import Conversation, values

GPL = Path("/usr/share/common-licenses/GPL-3")
SALES = (
    "date,region,product,units,revenue\n2024-01-05,North,Widget,10,100.50\n2024-01-06,South,Gadget,5,250.00\n"
    "2024-02-01,North,Gadget,7,350.00\n2024-02-10,East,Widget,3,30.15\n2025-03-01,South,Widget,20,201.00\n"
    "2025-03-02,West,Gizmo,1,\n"
)
PRICES = 'Name;Preis;Menge\nApfel;1,50;10\nBirne;2,25;4\n"Kirsche; rot";12,00;1\n'
USERS = "\n".join(
    json.dumps({"user": user, "score": score, "country": country})
    for user, score, country in [("ann", 10, "DE"), ("bob", 25, "US"), ("cy", 5, "DE"), ("dan", 40, "FR")]
)
LOG = (
    "2024-01-01 INFO start\n2024-01-01 ERROR disk full\n2024-01-02 WARNING slow\n2024-01-02 ERROR net down\n"
    "2024-01-03 INFO stop\n"
)
STAFF = (
    "id,name,department,salary,start_date,city\n1,Ann Lee,Engineering,85000,2019-03-01,Berlin\n"
    "2,Bob Ray,Sales,52000,2020-07-15,Paris\n3,Cy Young,Engineering,91000,2018-01-10,Berlin\n"
    "4,Dan Fox,HR,48000,2021-11-30,Rome\n5,Eve Hill,Sales,61000,2017-05-05,Paris\n"
)
CITIES = "city\tpopulation\tcountry\nBerlin\t3,645,000\tGermany\nMunich\t1,472,000\tGermany\nParis\t2,161,000\tFrance\n"
NOTES = (
    "# Title\n\nHello world. Contact: joe@example.org or ann@test.com.\n\n## Part two\n\n"
    "See https://example.com/x. TODO: fix it. TODO: more.\n\n- item\n"
)
CODE = "import os\n\ndef foo():\n    # TODO later\n    return 1\n\ndef bar():\n    return foo()\n"
CONTENTS = {
    "GPL": GPL.read_bytes(),
    "sales.csv": SALES,
    "preise.csv": PRICES,
    "u.jsonl": USERS,
    "app.log": LOG,
    "emp.csv": STAFF,
    "cities.tsv": CITIES,
    "notes.md": NOTES,
    "code.py": CODE,
    "empty.txt": "",
    "u16.txt": "caf\u00e9 patent caf\u00e9\n".encode("utf-16"),
    "l1.txt": "caf\u00e9 und caf\u00e9\n".encode("latin-1"),
    "crlf.txt": "a\r\nb\r\nc\r\n",
    "needle.txt": "\n".join(f"line {i} nothing here" for i in range(1000)) + "\nThe magic number is 4815162342.\n",
    "needle2.txt": "blah " * 1000 + "8675309 " + "blah " * 1000,
    "needle3.txt": "x y z\n" * 500 + "special code: ZX-99Q\n" + "x\n" * 500,
    "a.txt": "one two three two",
}

QUESTIONS = [
    ("GPL", 'How many times does the word "patent" appear in the attached file?', ["23"]),
    ("GPL", "how often is patent mentioned in the file", ["23"]),
    ("GPL", "How many lines does this file have?", ["674"]),
    ("sales.csv", "What is the total revenue?", ["931.65"]),
    ("sales.csv", "Which product sold the most units?", ["Widget", "33"]),
    ("sales.csv", "Which region has the highest revenue?", ["South", "451"]),
    ("sales.csv", "how many rows are there?", ["6"]),
    ("sales.csv", "how many sales were in the North region?", ["2"]),
    ("sales.csv", "what is the sum of units where region is South", ["25"]),
    ("sales.csv", "max revenue", ["350"]),
    ("sales.csv", "which row has the lowest revenue", ["30.15"]),
    ("sales.csv", "How many distinct products are there?", ["3"]),
    ("sales.csv", "how many records have revenue over 200", ["3"]),
    ("preise.csv", "Was ist the total of Preis?", ["15.75"]),
    ("preise.csv", "average Menge", ["5"]),
    ("u.jsonl", "How many users are from DE?", ["2"]),
    ("u.jsonl", "what is the average score?", ["20"]),
    ("app.log", "How many ERROR lines are there?", ["2"]),
    ("app.log", "how many errors are in the log?", ["2"]),
    ("app.log", "count lines containing WARNING", ["1"]),
    (None, "What is 17% of 2,340?", ["397.8"]),
    (None, "(3+4)*12", ["84"]),
    (None, "what is 2^10", ["1024"]),
    (None, "what is 12 factorial", ["479001600"]),
    (None, "sum of the numbers from 1 to 100", ["5050"]),
    (None, "average of 3, 5 and 10", ["6"]),
    (None, "how many days between 2024-01-01 and 2024-03-01", ["60"]),
    (None, "multiply 12 by 13", ["156"]),
    (None, "12 times 13", ["156"]),
    (None, "What is 100 divided by 8?", ["12.5"]),
    (None, "compute 5! please", ["120"]),
    (None, "What's 15 percent of 80?", ["12"]),
    (None, "Calculate 3.5 * 2 + 1", ["8"]),
    (None, "what is the sum of 3, 5 and 9?", ["17"]),
    (None, "add 12 and 30", ["42"]),
    (None, "How much is 7 squared?", ["49"]),
    (None, "What is the 10th Fibonacci number?", ["34"]),
    (None, "sum of even numbers between 1 and 10", ["30"]),
    (None, "greatest common divisor of 12 and 18", ["6"]),
    (None, "What is the median of 1, 7, 3?", ["3"]),
    (None, "1+1", ["2"]),
    (None, "What is 5 + 7 * 2?", ["19"]),
    (None, "What is 1000000 * 1000000", ["1000000000000"]),
    (None, "how many primes are there below 100?", ["25"]),
    (None, "what is 10 minus 3", ["7"]),
    (None, "divide 144 by 12", ["12"]),
    ("emp.csv", "What's the average salary?", ["67400"]),
    ("emp.csv", "What is the average salary in the Engineering department?", ["88000"]),
    ("emp.csv", "How many employees work in Sales?", ["2"]),
    ("emp.csv", "Which department has the highest average salary?", ["Engineering", "88000"]),
    ("emp.csv", "Who has the lowest salary?", ["48000"]),
    ("emp.csv", "list the names of employees in Paris", ["2"]),
    ("emp.csv", "How many employees earn more than 60000?", ["3"]),
    ("emp.csv", "What is the total payroll?", ["337000"]),
    ("emp.csv", "What are the unique cities?", ["3"]),
    ("emp.csv", "How many columns?", ["6"]),
    ("emp.csv", "count the rows", ["5"]),
    ("emp.csv", "What is the sum of the salary column?", ["337000"]),
    ("cities.tsv", "What is the total population?", ["7278000"]),
    ("cities.tsv", "How many cities are in Germany?", ["2"]),
    ("notes.md", "extract all email addresses", ["2"]),
    ("notes.md", "how many times does TODO appear", ["2"]),
    ("notes.md", "list the links in the document", ["1"]),
    ("code.py", "How many lines contain 'return'?", ["2"]),
    ("code.py", "how many blank lines are there", ["2"]),
    ("empty.txt", "How many words are in this file?", ["0"]),
    ("empty.txt", "How many times does 'a' appear?", ["0"]),
    ("u16.txt", "How many times does café appear?", ["2"]),
    ("l1.txt", "How often does the word café occur?", ["2"]),
    ("crlf.txt", "how many lines?", ["3"]),
    ("needle.txt", "What is the magic number?", ["4815162342"]),
    ("needle2.txt", "There is one hidden number in this text, find it.", ["8675309"]),
    ("needle3.txt", "Find the special code", ["ZX-99Q"]),
    ("a.txt", "How many times does 'two' appear and how many times does 'one' appear?", ["2", "1"]),
]


@pytest.fixture
def conversation(tmp_path: Path) -> Conversation:
    return Conversation(tmp_path)


@pytest.mark.parametrize(("name", "question", "expected"), QUESTIONS)
def test_the_numbers_of_an_answer_are_the_right_ones(
    conversation: Conversation, name: str | None, question: str, expected: list[str]
) -> None:
    if name is not None:
        conversation.attach(name, CONTENTS[name])
    answer = conversation.ask(question)
    assert values(answer)[: len(expected)] == expected, answer
    assert answer.endswith(MARK)


@pytest.mark.parametrize(
    "question",
    [
        "Find the hidden number in this text",
        "What is the 8-digit number hidden in the file?",
        "There is a secret code in the file. What is it?",
    ],
)
def test_a_hidden_number_is_found_in_eight_megabytes(conversation: Conversation, question: str) -> None:
    words = random.Random(1).choices(["alpha", "beta", "gamma", "delta"], k=1_500_000)
    text = " ".join(words)
    conversation.attach("big.txt", f"{text[:4_000_000]} The secret code is 73519264. {text[4_000_000:8_000_000]}")
    assert values(conversation.ask(question))[0] == "73519264"


@pytest.mark.parametrize(
    "question",
    ["Who won the world cup in 2014?", "Translate hello into French", "Write me a poem about the sea", "asdf qwer"],
)
def test_what_is_not_understood_is_said_with_how_to_get_a_real_model(conversation: Conversation, question: str) -> None:
    answer = conversation.ask(question)
    assert "did not understand" in answer and "FLEET_MODEL" in answer
    assert not values(answer)


def test_the_answer_says_how_it_counted(conversation: Conversation) -> None:
    conversation.attach("GPL-3", CONTENTS["GPL"])
    answer = conversation.ask('How many times does the word "patent" appear in the attached file?')
    assert "**23**" in answer and "whole word, any case" in answer


def test_a_follow_up_keeps_the_question_and_its_file(conversation: Conversation) -> None:
    conversation.attach("GPL-3", CONTENTS["GPL"])
    conversation.attach("sales.csv", SALES)
    conversation.ask('How many times does the word "patent" appear in GPL-3?')
    expected = len(re.findall(r"\bwarranty\b", GPL.read_text(), re.IGNORECASE))
    assert values(conversation.ask('and "warranty"?')) == [str(expected)]
    assert values(conversation.ask("What about the word patent?")) == ["23"]
    assert values(conversation.ask("How many lines does the same file have?")) == ["674"]


def test_earlier_questions_are_remembered(conversation: Conversation) -> None:
    conversation.ask("What is 2 + 2?")
    conversation.ask("is 97 prime?")
    assert "2 + 2" in conversation.ask("What did I ask first?")


def test_a_binary_file_is_not_counted_but_named(conversation: Conversation) -> None:
    conversation.attach("image.dat", b"\x00\x01PNG" * 100)
    answer = conversation.ask("How many words does it have?")
    assert "image.dat is not a text file" in answer and not values(answer)


def test_a_question_about_a_file_that_is_not_there_says_so(conversation: Conversation) -> None:
    assert "No file is attached" in conversation.ask("How many times does foo appear in the file?")


def test_two_files_are_compared_line_by_line(conversation: Conversation) -> None:
    conversation.attach("a.txt", "one\ntwo\nthree\n")
    conversation.attach("b.txt", "one\n2\nthree\n")
    assert values(conversation.ask("Compare the two files")) == ["2"]
