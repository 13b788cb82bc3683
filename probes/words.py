"""Words of the synthetic documents: common ones, so that every tokeniser has them whole."""

ATTRIBUTES = (
    "access code", "gate number", "door key", "vault number", "locker code", "safe number",
    "entry code", "pass number", "badge number", "drawer code", "cabin number", "signal code",
    "harbor code", "engine number", "garden key", "library code", "station code", "tower number",
)  # fmt: skip
ADJECTIVES = (
    "amber", "silver", "crimson", "quiet", "golden", "narrow", "ancient", "bright", "hidden",
    "frozen", "gentle", "hollow", "iron", "jolly", "lonely", "mellow", "northern", "orange",
    "patient", "rapid", "royal", "rusty", "scarlet", "secret", "shining", "simple", "sleepy",
    "southern", "steady", "stormy", "summer", "sunny", "tender", "velvet", "violet", "wandering",
    "western", "wicked", "wild", "winter", "wise", "wooden", "yellow", "young", "broken", "clever",
    "distant", "eastern",
)  # fmt: skip
NOUNS = (
    "falcon", "otter", "heron", "harbor", "castle", "bridge", "market", "garden", "library",
    "station", "tower", "village", "valley", "mountain", "river", "island", "forest", "meadow",
    "palace", "temple", "kitchen", "cellar", "workshop", "factory", "theater", "museum", "school",
    "hospital", "chapel", "mill", "farm", "orchard", "bakery", "tavern", "stable", "barn", "dock",
    "lighthouse", "quarry", "mine", "camp", "cabin", "cottage", "fortress", "gallery", "hall",
    "office", "studio",
)  # fmt: skip
THINGS = (
    "lanterns", "barrels", "ropes", "tickets", "maps", "letters", "carpets", "candles", "bottles",
    "ladders", "baskets", "clocks", "boxes", "chairs", "tables", "coins", "stamps", "tools",
    "wheels", "windows", "blankets", "hammers", "mirrors", "paintings", "pillows", "plates",
    "ribbons", "shirts", "shoes", "sacks", "trunks", "umbrellas",
)  # fmt: skip
VERBS = (
    "keeps", "sells", "counts", "stores", "lends", "repairs", "collects", "ships", "cleans",
    "paints", "guards", "sorts", "orders", "returns", "weighs", "marks",
)  # fmt: skip
PLACES = ("behind", "beside", "below", "above", "near", "opposite", "inside", "outside")
PEOPLE = (
    "Alice", "Anna", "Carlos", "Clara", "Daniel", "Diana", "Elena", "Emma", "Erik", "Eva", "Felix",
    "Frank", "George", "Grace", "Hannah", "Henry", "Hugo", "Irene", "Isaac", "Ivan", "Jacob",
    "James", "Julia", "Karen", "Kevin", "Laura", "Leo", "Linda", "Lucas", "Maria", "Martin", "Nina",
    "Oliver", "Oscar", "Paul", "Peter", "Rachel", "Robert", "Rosa", "Samuel", "Sara", "Simon",
    "Sofia", "Thomas", "Victor", "Vera", "Walter", "William",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
