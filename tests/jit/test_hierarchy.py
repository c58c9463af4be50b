"""The prints of a ResNet are shaped as in the guide, line by line."""

from __future__ import annotations

import re

import pytest
import torch

import aitune.torch as ait

LINE = re.compile(
    r"(?P<indent>(?:  )*)├─ (?P<name>\w+) 📊(?P<size>\d+|\d+\.\d[KMB]) level=(?P<level>\d+)🪜"
    r" state=(?P<state>init⏳|recording🔴|tuned🎯|eager⚠️|skipped🚫|detached☑️)(?: \((?P<backend>\w+)\))?"
    r" call_count=(?P<calls>\d+)"
)


class BasicBlock(torch.nn.Module):
    def __init__(self, width, stride=1):
        super().__init__()
        before = width // stride
        self.conv1 = torch.nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(width)
        self.relu = torch.nn.ReLU(inplace=True)
        self.conv2 = torch.nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(width)
        self.downsample = None
        if stride > 1:
            conv = torch.nn.Conv2d(before, width, 1, stride, bias=False)
            self.downsample = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(width))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(torch.nn.Module):
    """ResNet-18."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(64)
        self.relu = torch.nn.ReLU(inplace=True)
        self.maxpool = torch.nn.MaxPool2d(3, 2, 1)
        self.layer1 = torch.nn.Sequential(BasicBlock(64), BasicBlock(64))
        self.layer2 = torch.nn.Sequential(BasicBlock(128, 2), BasicBlock(128))
        self.layer3 = torch.nn.Sequential(BasicBlock(256, 2), BasicBlock(256))
        self.layer4 = torch.nn.Sequential(BasicBlock(512, 2), BasicBlock(512))
        self.avgpool = torch.nn.AdaptiveAvgPool2d(1)
        self.fc = torch.nn.Linear(512, 1000)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


@pytest.fixture(autouse=True)
def unchecked(settings):
    """Values and times are other tests' matter; one thread is the quickest for a small image on a busy machine."""
    settings.strategy.enable_correctness_check(False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_four_times(net):
    with torch.no_grad():
        for size in (1, 2, 1, 2):
            net(torch.randn(size, 3, 32, 32))


def test_the_hierarchy_of_a_resnet_is_printed_as_in_the_guide(jit, capsys):
    jit.min_samples = 4
    net = ResNet().eval()
    run_four_times(net)
    ait.PatchedModule.print_hierarchy()
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "JIT Tuning Hierarchy:"
    assert lines[:8] == [
        "├─ ResNet 📊11.7M level=0🪜 state=tuned🎯 (FunctionBackend) call_count=4",
        "  ├─ Conv2d 📊9.4K level=1🪜 state=detached☑️ call_count=4",
        "  ├─ BatchNorm2d 📊128 level=1🪜 state=detached☑️ call_count=4",
        "  ├─ BasicBlock 📊74.0K level=1🪜 state=detached☑️ call_count=4",
        "    ├─ Conv2d 📊36.9K level=2🪜 state=detached☑️ call_count=4",
        "    ├─ BatchNorm2d 📊128 level=2🪜 state=detached☑️ call_count=4",
        "    ├─ Conv2d 📊36.9K level=2🪜 state=detached☑️ call_count=4",
        "    ├─ BatchNorm2d 📊128 level=2🪜 state=detached☑️ call_count=4",
    ]
    assert lines[-1] == "  ├─ Linear 📊513.0K level=1🪜 state=detached☑️ call_count=4"
    for line in lines:
        found = LINE.fullmatch(line)
        assert found, line
        assert len(found["indent"]) == 2 * int(found["level"])


def test_the_history_of_a_resnet_is_printed_as_in_the_guide(jit, capsys, steps):
    jit.min_samples = 4
    jit.detect_graph_breaks = True
    net = ResNet().eval()
    run_four_times(net)
    ait.PatchedModule.print_history()
    printed = capsys.readouterr().out.splitlines()
    taken = steps()
    assert printed[-len(taken) : -1] == [f" {step!r}," for step in taken[:-1]]
    assert printed[-1] == f" {taken[-1]!r}]"
    lines = iter(printed)
    for pattern in (
        r" 'New top module: ResNet 📊11\.7M level=0🪜 state=init⏳ call_count=1',",
        r" 'New child module: Linear 📊513\.0K level=1🪜 state=init⏳ call_count=1',",
        r" 'No graph breaks in ResNet 📊11\.7M\. Checking took \d+\.\d\ds',",
        r" 'Tuning ResNet 📊11\.7M took \d+\.\d\ds',",
        r" 'Unpatching child module: Linear 📊513\.0K level=1🪜 state=detached☑️ call_count=4'\]",
    ):
        assert any(re.fullmatch(pattern, line) for line in lines), pattern  # in this order


def test_hierarchy_and_history_are_data_too(jit, net, steps):
    with torch.no_grad():
        net(torch.randn(2, 4))
    (head,) = ait.PatchedModule.hierarchy()
    assert (head.name, head.parameters, head.level, head.call_count) == ("Net", 55, 0, 1)
    assert [child.name for child in head.children] == ["Block", "Block", "Linear"]
    assert ait.PatchedModule.history()[-len(steps()) :] == steps()


def test_counts_are_written_short():
    from aitune.torch.jit.patched_module import short_count

    counts = [0, 128, 999, 1000, 9408, 73984, 999_949, 999_999, 11_689_512, 7_000_000_000, 2_000_000_000_000]
    written = ["0", "128", "999", "1.0K", "9.4K", "74.0K", "999.9K", "1.0M", "11.7M", "7.0B", "2000.0B"]
    assert [short_count(count) for count in counts] == written
