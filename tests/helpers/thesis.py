"""Tables of Divi's thesis (2021), which gains and answers are held to."""

import numpy as np

# Divi 2021, Table 5.1: nine users, %
LOCAL = [73, 71, 61, 55, 69, 65, 74, 68, 75]

FEDAVG = [78, 75, 69, 71, 74, 77, 80, 82, 85]

ALGORITHMS = {
    "alg1": [82, 82, 82, 75, 74, 75, 77, 77, 78],
    "alg2": [79, 74, 75, 79, 78, 89, 74, 76, 79],
    "alg3": [76, 72, 68, 82, 85, 87, 78, 79, 79],
    "alg4": [75, 72, 68, 96, 97, 75, 76, 78, 77],
}

# Table 6.2: CIFAR-10, a line a user; FedAvg, PersFL, FedPer, pFedMe and Per-FedAvg on DS-1, DS-2
# and DS-3 each, %
USERS = """
43.6 50.8 48.2 85.5 61.3 94.5 83.2 57.2 93.1 74.3 61.7 94.2 69.2 58.2 92.5
50.9 45.3 40.8 78.2 56.9 79.9 74.5 51.4 77   64.1 57.3 79.2 65   56.1 73.7
44.5 49.4 31.2 82.2 57.3 68.9 78.4 53.2 64.7 69.6 57.3 64.4 67.9 57.2 64.6
51.3 46.5 31.5 82.1 60.1 82.5 77.9 55.4 77.5 69.4 58.9 72.5 67.2 58.8 77
45.3 50.8 49.4 79.4 59.1 82.5 76.1 54.4 78.6 67.2 59.5 80   65.8 59.4 82.5
44.2 50.7 47.8 77.1 61.9 79.9 72.1 57.6 76.9 62.1 60.6 77.5 62.7 59.3 77.9
35.8 46.5 56.8 75.6 58.9 90.3 70.9 53.3 88.5 59.9 58.6 88.3 58.2 57.7 89.1
37.9 49.5 58.1 79.7 61.2 87.6 75.6 56.9 84.6 65.8 60.2 84   64.3 58   83.7
47.7 48.7 49   87.7 60   76.7 84.4 57.5 73.5 75.5 59.6 66.9 72.5 55.8 64.1
48.6 49.1 53.5 91   58.8 80.3 88.5 54.3 77.9 81.7 58.3 73.8 76.6 55.3 72.7
"""

METHODS = ("fedavg", "persfl", "fedper", "pfedme", "perfedavg")

BLOCK = np.array(USERS.split(), dtype=float).reshape(10, 5, 3) / 100

TABLE62 = {(m, d): BLOCK[:, i, d] for i, m in enumerate(METHODS) for d in range(3)}


def percent(values):
    return np.array(values) / 100


def table51():
    given = {"local": LOCAL, "fedavg": FEDAVG, **ALGORITHMS}
    return {name: percent(values) for name, values in given.items()}
