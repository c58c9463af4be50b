"""The page needs nothing beside itself and lets nothing of what it shows become markup."""

from html.parser import HTMLParser

import pytest

from aitune.torch.report import EndToEnd, GraphResult, ModuleResult, TuneResult
from aitune.torch.trial import Trial, Verdict

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Outline(HTMLParser):
    """Collects the tags and the text, and insists that tags are closed in order."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.text, self.attributes = [], [], "", []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_fragment_shows_every_trial_with_verdict_and_reason(result, trials):
    outline = Outline(result._repr_html_())
    assert outline.tags.count("tr") == 1 + len(trials)
    for trial in trials:
        assert trial.backend in outline.text
        assert str(trial.verdict) in outline.text
        assert trial.reason in outline.text
    for text in (
        "End to end: 1.28x",
        "head is in training mode",
        "aten::foo",
        "graph note",
        "Some CPU",
        "1.35x",
        "129 MB",
    ):
        assert text in outline.text


def test_the_chosen_row_is_marked(result):
    outline = Outline(result._repr_html_())
    assert outline.attributes.count(("class", "chosen")) == 1


def test_the_fragment_is_no_page_and_styles_only_itself(result):
    html = result._repr_html_()
    outline = Outline(html)
    assert not {"html", "head", "body"} & set(outline.tags)
    style = html.split("<style>")[1].split("</style>")[0]
    selectors = [part for line in style.strip().splitlines() for part in line.split("{")[0].split(",")]
    assert all(selector.strip().startswith(".aitune-result") for selector in selectors)


def test_the_page_refers_to_nothing_outside_itself(result, tmp_path):
    html = result.save_html(tmp_path / "result.html").read_text(encoding="utf-8")
    outline = Outline(html)
    assert html.startswith("<!DOCTYPE html>")
    assert not {"script", "link", "img", "iframe"} & set(outline.tags)
    assert not {"src", "href"} & {name for name, _ in outline.attributes}
    assert "url(" not in html
    assert "@import" not in html


EVIL = "<script>alert(1)</script>\"'&\x00\x1b[31m\ud800"


def test_everything_that_others_wrote_is_escaped(tmp_path):
    trial = Trial(backend=EVIL, verdict=Verdict.wrong, reason=EVIL, evidence=(EVIL,), log_path=EVIL)
    graph = GraphResult(EVIL, (EVIL,), (EVIL,), EVIL, (trial,), (EVIL,))
    module = ModuleResult(EVIL, EVIL, (graph,), EVIL, put_back=True)
    end = EndToEnd(1.0, 1.0, 1.0, 1.0, 1.0, (EVIL,), EVIL)
    result = TuneResult({EVIL: module}, end, 1.0, {EVIL: EVIL}, (EVIL,))
    html = result.save_html(tmp_path / "evil.html").read_text(encoding="utf-8")
    assert "script" not in Outline(html).tags
    assert Outline(html).text.count("<script>alert(1)</script>\"'&") >= 14
    assert "\x00" not in html
    assert "\x1b" not in html


def test_an_empty_result_has_a_page_too():
    assert "No module was tuned" in Outline(TuneResult()._repr_html_()).text


def test_a_page_replaces_an_older_one_as_a_whole_and_leaves_nothing_beside_it(result, tmp_path):
    path = tmp_path / "result.html"
    path.write_text("old", encoding="utf-8")
    assert result.save_html(str(path)) == path.resolve()
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_that_cannot_be_written_leaves_the_older_one_alone(result, tmp_path, monkeypatch):
    path = tmp_path / "result.html"
    path.write_text("old", encoding="utf-8")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space left"):
        result.save_html(path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_an_error_of_the_caller(result, tmp_path):
    with pytest.raises(FileNotFoundError):
        result.save_html(tmp_path / "missing" / "result.html")


def test_a_symbolic_link_stays_one(result, tmp_path):
    target, link = tmp_path / "target.html", tmp_path / "link.html"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    result.save_html(link)
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") != "old"
