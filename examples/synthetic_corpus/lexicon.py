"""The words of the synthetic English-German corpus, without the grammar.

Every English word form has one German counterpart in the sentences that
`examples.synthetic_corpus` generates. Therefore the English sentence determines the
German sentence.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A noun; `oblique` is the accusative and dative singular of weak nouns."""

    english: str
    english_plural: str
    gender: str
    german: str
    german_plural: str
    oblique: str = ""


@dataclass(frozen=True)
class Adjective:
    """An adjective; `stem` takes the endings (teuer, but teur-e)."""

    english: str
    german: str
    stem: str


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun. `agreement` is the person and number of its verb."""

    english_subject: str
    english_object: str
    nominative: str
    accusative: str
    dative: str
    agreement: str


@dataclass(frozen=True)
class Verb:
    """A verb with the forms that the grammar uses.

    English: base form, third person singular, past tense, particle. German:
    infinitive (also the plural), first and third person singular, participle.
    `prefix` is separable, `auxiliary` forms the perfect, and `case` is the case of
    an object that is a person.
    """

    english: str
    third: str
    past: str
    german: str
    german_first: str
    german_third: str
    participle: str
    particle: str = ""
    prefix: str = ""
    auxiliary: str = "haben"
    case: str = "accusative"


@dataclass(frozen=True)
class Phrase:
    """An adverbial that is the same in every sentence."""

    english: str
    german: str


PEOPLE = (
    Noun("man", "men", "masculine", "Mann", "Männer"),
    Noun("woman", "women", "feminine", "Frau", "Frauen"),
    Noun("boy", "boys", "masculine", "Junge", "Jungen", "Jungen"),
    Noun("girl", "girls", "neuter", "Mädchen", "Mädchen"),
    Noun("child", "children", "neuter", "Kind", "Kinder"),
    Noun("teacher", "teachers", "masculine", "Lehrer", "Lehrer"),
    Noun("doctor", "doctors", "masculine", "Arzt", "Ärzte"),
    Noun("neighbor", "neighbors", "masculine", "Nachbar", "Nachbarn", "Nachbarn"),
)
RELATIVES = (
    Noun("brother", "brothers", "masculine", "Bruder", "Brüder"),
    Noun("sister", "sisters", "feminine", "Schwester", "Schwestern"),
    Noun("aunt", "aunts", "feminine", "Tante", "Tanten"),
    Noun("uncle", "uncles", "masculine", "Onkel", "Onkel"),
)
THINGS = (
    Noun("book", "books", "neuter", "Buch", "Bücher"),
    Noun("picture", "pictures", "neuter", "Bild", "Bilder"),
    Noun("letter", "letters", "masculine", "Brief", "Briefe"),
    Noun("lamp", "lamps", "feminine", "Lampe", "Lampen"),
    Noun("key", "keys", "masculine", "Schlüssel", "Schlüssel"),
    Noun("apple", "apples", "masculine", "Apfel", "Äpfel"),
    Noun("bag", "bags", "feminine", "Tasche", "Taschen"),
    Noun("coat", "coats", "masculine", "Mantel", "Mäntel"),
    Noun("car", "cars", "neuter", "Auto", "Autos"),
    Noun("bicycle", "bicycles", "neuter", "Fahrrad", "Fahrräder"),
    Noun("dog", "dogs", "masculine", "Hund", "Hunde"),
    Noun("cat", "cats", "feminine", "Katze", "Katzen"),
)
CLOSABLE = (
    Noun("window", "windows", "neuter", "Fenster", "Fenster"),
    Noun("door", "doors", "feminine", "Tür", "Türen"),
    Noun("bag", "bags", "feminine", "Tasche", "Taschen"),
    Noun("suitcase", "suitcases", "masculine", "Koffer", "Koffer"),
)
GIFTS = THINGS[:7]

PERSON_ADJECTIVES = (
    Adjective("tall", "groß", "groß"),
    Adjective("friendly", "freundlich", "freundlich"),
)
THING_ADJECTIVES = (
    Adjective("old", "alt", "alt"),
    Adjective("new", "neu", "neu"),
    Adjective("small", "klein", "klein"),
    Adjective("beautiful", "schön", "schön"),
    Adjective("expensive", "teuer", "teur"),
)
STATES = (
    Phrase("tired", "müde"),
    Phrase("ill", "krank"),
    Phrase("happy", "glücklich"),
    Phrase("hungry", "hungrig"),
)

I = Pronoun("I", "me", "ich", "mich", "mir", "first")  # noqa: E741
HE = Pronoun("he", "him", "er", "ihn", "ihm", "third")
SHE = Pronoun("she", "her", "sie", "sie", "ihr", "third")
WE = Pronoun("we", "us", "wir", "uns", "uns", "plural")
THEY = Pronoun("they", "them", "sie", "sie", "ihnen", "plural")
PRONOUNS = (I, HE, SHE, WE, THEY)
NAMES = ("Anna", "Maria", "Paul", "Peter")

SLEEP = Verb("sleep", "sleeps", "slept", "schlafen", "schlafe", "schläft", "geschlafen")
WAIT = Verb("wait", "waits", "waited", "warten", "warte", "wartet", "gewartet")
WORK = Verb("work", "works", "worked", "arbeiten", "arbeite", "arbeitet", "gearbeitet")
DANCE = Verb("dance", "dances", "danced", "tanzen", "tanze", "tanzt", "getanzt")
COOK = Verb("cook", "cooks", "cooked", "kochen", "koche", "kocht", "gekocht")
GET_UP = Verb(
    "get up",
    "gets up",
    "got up",
    "stehen",
    "stehe",
    "steht",
    "gestanden",
    prefix="auf",
    auxiliary="sein",
)
FALL_ASLEEP = Verb(
    "fall asleep",
    "falls asleep",
    "fell asleep",
    "schlafen",
    "schlafe",
    "schläft",
    "geschlafen",
    prefix="ein",
    auxiliary="sein",
)
ARRIVE = Verb(
    "arrive",
    "arrives",
    "arrived",
    "kommen",
    "komme",
    "kommt",
    "gekommen",
    prefix="an",
    auxiliary="sein",
)
COME_BACK = Verb(
    "come back",
    "comes back",
    "came back",
    "kommen",
    "komme",
    "kommt",
    "gekommen",
    prefix="zurück",
    auxiliary="sein",
)
STAY = Verb("stay", "stays", "stayed", "bleiben", "bleibe", "bleibt", "geblieben", auxiliary="sein")
GO = Verb("go", "goes", "went", "gehen", "gehe", "geht", "gegangen", auxiliary="sein")
DRIVE = Verb("drive", "drives", "drove", "fahren", "fahre", "fährt", "gefahren", auxiliary="sein")

VISIT = Verb("visit", "visits", "visited", "besuchen", "besuche", "besucht", "besucht")
SEE = Verb("see", "sees", "saw", "sehen", "sehe", "sieht", "gesehen")
MEET = Verb("meet", "meets", "met", "treffen", "treffe", "trifft", "getroffen")
CALL = Verb("call", "calls", "called", "rufen", "rufe", "ruft", "gerufen", prefix="an")
INVITE = Verb("invite", "invites", "invited", "laden", "lade", "lädt", "geladen", prefix="ein")
PICK_UP = Verb(
    "pick", "picks", "picked", "holen", "hole", "holt", "geholt", particle="up", prefix="ab"
)
HELP = Verb("help", "helps", "helped", "helfen", "helfe", "hilft", "geholfen", case="dative")
THANK = Verb("thank", "thanks", "thanked", "danken", "danke", "dankt", "gedankt", case="dative")
FOLLOW = Verb(
    "follow",
    "follows",
    "followed",
    "folgen",
    "folge",
    "folgt",
    "gefolgt",
    auxiliary="sein",
    case="dative",
)
LISTEN = Verb(
    "listen to",
    "listens to",
    "listened to",
    "hören",
    "höre",
    "hört",
    "gehört",
    prefix="zu",
    case="dative",
)

BUY = Verb("buy", "buys", "bought", "kaufen", "kaufe", "kauft", "gekauft")
SELL = Verb("sell", "sells", "sold", "verkaufen", "verkaufe", "verkauft", "verkauft")
FIND = Verb("find", "finds", "found", "finden", "finde", "findet", "gefunden")
LOOK_FOR = Verb("look for", "looks for", "looked for", "suchen", "suche", "sucht", "gesucht")
BRING = Verb(
    "bring",
    "brings",
    "brought",
    "bringen",
    "bringe",
    "bringt",
    "gebracht",
    particle="along",
    prefix="mit",
)
OPEN = Verb("open", "opens", "opened", "machen", "mache", "macht", "gemacht", prefix="auf")
CLOSE = Verb("close", "closes", "closed", "machen", "mache", "macht", "gemacht", prefix="zu")
GIVE = Verb("give", "gives", "gave", "geben", "gebe", "gibt", "gegeben")
SHOW = Verb("show", "shows", "showed", "zeigen", "zeige", "zeigt", "gezeigt")

SAY = Verb("say", "says", "said", "sagen", "sage", "sagt", "gesagt")
BELIEVE = Verb("believe", "believes", "believed", "glauben", "glaube", "glaubt", "geglaubt")
KNOW = Verb("know", "knows", "knew", "wissen", "weiß", "weiß", "gewusst")
ASK = Verb("ask", "asks", "asked", "fragen", "frage", "fragt", "gefragt")
TRY = Verb("try", "tries", "tried", "versuchen", "versuche", "versucht", "versucht")
FORGET = Verb("forget", "forgets", "forgot", "vergessen", "vergesse", "vergisst", "vergessen")
RAIN = Verb("rain", "rains", "rained", "regnen", "regne", "regnet", "geregnet")
BE = Verb("be", "is", "was", "sein", "bin", "ist", "gewesen")

PLACES = (
    Phrase("in the garden", "im Garten"),
    Phrase("in the kitchen", "in der Küche"),
    Phrase("at the station", "am Bahnhof"),
    Phrase("in the city", "in der Stadt"),
    Phrase("at home", "zu Hause"),
)
GOALS = (
    Phrase("to the station", "zum Bahnhof"),
    Phrase("to the city", "in die Stadt"),
    Phrase("home", "nach Hause"),
    Phrase("to Berlin", "nach Berlin"),
)
ON_FOOT_GOALS = GOALS[:3] + (
    Phrase("into the garden", "in den Garten"),
    Phrase("into the kitchen", "in die Küche"),
)
TIMES = {
    "present": (
        Phrase("today", "heute"),
        Phrase("every day", "jeden Tag"),
        Phrase("in the evening", "am Abend"),
        Phrase("on Sunday", "am Sonntag"),
    ),
    "past": (
        Phrase("yesterday", "gestern"),
        Phrase("last week", "letzte Woche"),
        Phrase("in the evening", "am Abend"),
        Phrase("on Sunday", "am Sonntag"),
    ),
    "future": (
        Phrase("tomorrow", "morgen"),
        Phrase("next week", "nächste Woche"),
        Phrase("soon", "bald"),
        Phrase("on Sunday", "am Sonntag"),
    ),
}
FREQUENCIES = (
    Phrase("often", "oft"),
    Phrase("always", "immer"),
    Phrase("never", "nie"),
)
