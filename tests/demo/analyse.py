"""What the agent runs in its sandbox: groups a workbook's earthquakes by depth and draws a chart."""

import sys

import matplotlib.pyplot as plt
import pandas as pd

source, target = sys.argv[1:]
quakes = pd.read_excel(source, sheet_name="quakes")
zones = pd.cut(quakes["depth"], [0, 70, 300, 800], labels=["shallow (to 70 km)", "intermediate (to 300 km)", "deep"])
groups = quakes.groupby(zones, observed=True)
summary = groups.agg(quakes=("mag", "size"), magnitude=("mag", "mean"), strongest=("mag", "max"), stations=("stations", "mean"))
print(summary.round(2).to_string())

figure, (places, counts) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
for zone, rows in groups:
    places.scatter(rows["long"], rows["lat"], s=4 ** (rows["mag"] - 3.5), alpha=0.5, label=zone)
places.set(title=f"{len(quakes)} earthquakes near Fiji", xlabel="longitude", ylabel="latitude")
places.legend()
counts.hist([rows["mag"] for _, rows in groups], bins=12, stacked=True, label=[zone for zone, _ in groups])
counts.set(title="by magnitude", xlabel="magnitude", ylabel="earthquakes")
figure.savefig(target, dpi=120)
