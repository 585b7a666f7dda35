"""Writes windows.npz: what the motion sensors of 15 people's phones record while these do six
things. Generated, not recorded.

And p03-new.npy: five more windows of one of them.

A window is 2.56 s at 50 Hz: three axes of acceleration in g, gravity included, then three of
angular velocity in rad/s. People differ in the pace and strength of their movements, in how the
phone sits in the pocket, in its sensors' bias, and in how often they do what."""

import numpy as np

PEOPLE, WINDOWS, MORE, STEPS, RATE = 15, 80, 5, 128, 50.0
# steps a second, acceleration up and down, forward and sideways (g), turning (rad/s), lean of the
# phone (rad)
ACTIVITIES = {
    "walking": (1.8, 0.30, 0.18, 0.9, 0.1),
    "upstairs": (1.5, 0.28, 0.24, 1.1, 0.35),
    "downstairs": (1.9, 0.42, 0.20, 1.2, -0.2),
    "running": (2.7, 0.90, 0.40, 2.2, 0.2),
    "standing": (0.3, 0.01, 0.01, 0.04, 0.0),
    "sitting": (0.3, 0.008, 0.008, 0.03, 1.4),
}


def rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """[3, 3]: about `axis` by `angle` (Rodrigues)."""
    x, y, z = axis / np.linalg.norm(axis)
    k = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * k + (1 - np.cos(angle)) * k @ k


def person(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One person's windows [n, 6, 128], and what is done in each [n]."""
    pace, strength = rng.normal(1, 0.12), rng.lognormal(0, 0.25)
    # how a step divides into a swing, an impact and what it shakes
    harmonics = rng.dirichlet([4, 2, 1])
    sits = rotation(rng.normal(size=3), rng.normal(0, 0.5))  # how the phone sits in the pocket
    bias = np.r_[rng.normal(0, 0.03, 3), rng.normal(0, 0.05, 3)]
    noise = np.r_[np.full(3, 0.05), np.full(3, 0.15)] * rng.uniform(0.7, 1.5)
    labels = rng.choice(
        len(ACTIVITIES), WINDOWS + MORE, p=rng.dirichlet(np.full(len(ACTIVITIES), 3.0))
    )
    time, multiples = np.arange(STEPS) / RATE, np.arange(1, 4)
    windows = np.empty((len(labels), 6, STEPS), np.float32)
    for window, label in zip(windows, labels, strict=True):
        steps, up, level, turning, lean = list(ACTIVITIES.values())[label]
        phases = 2 * np.pi * steps * pace * rng.normal(1, 0.05) * time * multiples[:, None]
        size = (
            strength
            * rng.normal(1, 0.15)
            * np.array([level, level / 2, up, turning / 2, turning, turning / 3])
        )
        start = rng.uniform(0, 2 * np.pi) + np.array([0, 1.6, 0.4, 0.9, 2.1, 1.2])[:, None]
        # [6, 128]
        waves = (harmonics[:, None] * np.sin(phases + start[:, None] * multiples[:, None])).sum(1)
        moved = size[:, None] * waves + np.array([0, 0, 1, 0, 0, 0])[:, None]
        turn = sits @ rotation(np.array([0.0, 1.0, 0.0]), lean + rng.normal(0, 0.12))
        window[:3], window[3:] = turn @ moved[:3], turn @ moved[3:]
    windows += bias[:, None] + noise[:, None] * rng.normal(size=windows.shape)
    return windows, labels


def main() -> None:
    rng, names = np.random.default_rng(0), list(ACTIVITIES)
    people = {f"p{i + 1:02d}": person(rng) for i in range(PEOPLE)}
    windows, labels = (
        np.concatenate([both[part][:WINDOWS] for both in people.values()]) for part in (0, 1)
    )
    np.savez_compressed(
        "windows.npz",
        inputs=windows,
        labels=labels,
        class_names=names,
        clients=np.repeat(list(people), WINDOWS),
    )
    more, done = (part[WINDOWS:] for part in people["p03"])
    np.save("p03-new.npy", more)
    print(
        f"windows.npz: {len(labels)} windows of {PEOPLE} people; p03-new.npy:"
        f" {', '.join(names[label] for label in done)}"
    )


if __name__ == "__main__":
    main()
