"""Class names of well-known data sets, in the order of their classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costream.core.errors import ModelError
from costream.core.spelling import composed

# Kinetics-400, in the alphabetical order of its classifiers.
CLASSES = (
    *("abseiling", "air drumming", "answering questions", "applauding", "applying cream"),
    *("archery", "arm wrestling", "arranging flowers", "assembling computer", "auctioning"),
    *("baby waking up", "baking cookies", "balloon blowing", "bandaging", "barbequing"),
    *("bartending", "beatboxing", "bee keeping", "belly dancing", "bench pressing"),
    *("bending back", "bending metal", "biking through snow", "blasting sand", "blowing glass"),
    *("blowing leaves", "blowing nose", "blowing out candles", "bobsledding", "bookbinding"),
    *("bouncing on trampoline", "bowling", "braiding hair", "breading or breadcrumbing"),
    *("breakdancing", "brush painting", "brushing hair", "brushing teeth", "building cabinet"),
    *("building shed", "bungee jumping", "busking", "canoeing or kayaking", "capoeira"),
    *("carrying baby", "cartwheeling", "carving pumpkin", "catching fish"),
    *("catching or throwing baseball", "catching or throwing frisbee"),
    *("catching or throwing softball", "celebrating", "changing oil", "changing wheel"),
    *("checking tires", "cheerleading", "chopping wood", "clapping", "clay pottery making"),
    *("clean and jerk", "cleaning floor", "cleaning gutters", "cleaning pool"),
    *("cleaning shoes", "cleaning toilet", "cleaning windows", "climbing a rope"),
    *("climbing ladder", "climbing tree", "contact juggling", "cooking chicken", "cooking egg"),
    *("cooking on campfire", "cooking sausages", "counting money", "country line dancing"),
    *("cracking neck", "crawling baby", "crossing river", "crying", "curling hair"),
    *("cutting nails", "cutting pineapple", "cutting watermelon", "dancing ballet"),
    *("dancing charleston", "dancing gangnam style", "dancing macarena", "deadlifting"),
    *("decorating the christmas tree", "digging", "dining", "disc golfing", "diving cliff"),
    *("dodgeball", "doing aerobics", "doing laundry", "doing nails", "drawing"),
    *("dribbling basketball", "drinking", "drinking beer", "drinking shots", "driving car"),
    *("driving tractor", "drop kicking", "drumming fingers", "dunking basketball"),
    *("dying hair", "eating burger", "eating cake", "eating carrots", "eating chips"),
    *("eating doughnuts", "eating hotdog", "eating ice cream", "eating spaghetti"),
    *("eating watermelon", "egg hunting", "exercising arm", "exercising with an exercise ball"),
    *("extinguishing fire", "faceplanting", "feeding birds", "feeding fish", "feeding goats"),
    *("filling eyebrows", "finger snapping", "fixing hair", "flipping pancake", "flying kite"),
    *("folding clothes", "folding napkins", "folding paper", "front raises"),
    *("frying vegetables", "garbage collecting", "gargling", "getting a haircut"),
    *("getting a tattoo", "giving or receiving award", "golf chipping", "golf driving"),
    *("golf putting", "grinding meat", "grooming dog", "grooming horse", "gymnastics tumbling"),
    *("hammer throw", "headbanging", "headbutting", "high jump", "high kick"),
    *("hitting baseball", "hockey stop", "holding snake", "hopscotch", "hoverboarding"),
    *("hugging", "hula hooping", "hurdling", "hurling (sport)", "ice climbing", "ice fishing"),
    *("ice skating", "ironing", "javelin throw", "jetskiing", "jogging", "juggling balls"),
    *("juggling fire", "juggling soccer ball", "jumping into pool", "jumpstyle dancing"),
    *("kicking field goal", "kicking soccer ball", "kissing", "kitesurfing", "knitting"),
    *("krumping", "laughing", "laying bricks", "long jump", "lunge", "making a cake"),
    *("making a sandwich", "making bed", "making jewelry", "making pizza", "making snowman"),
    *("making sushi", "making tea", "marching", "massaging back", "massaging feet"),
    *("massaging legs", "massaging person's head", "milking cow", "mopping floor"),
    *("motorcycling", "moving furniture", "mowing lawn", "news anchoring", "opening bottle"),
    *("opening present", "paragliding", "parasailing", "parkour"),
    *("passing American football (in game)", "passing American football (not in game)"),
    *("peeling apples", "peeling potatoes", "petting animal (not cat)", "petting cat"),
    *("picking fruit", "planting trees", "plastering", "playing accordion"),
    *("playing badminton", "playing bagpipes", "playing basketball", "playing bass guitar"),
    *("playing cards", "playing cello", "playing chess", "playing clarinet"),
    *("playing controller", "playing cricket", "playing cymbals", "playing didgeridoo"),
    *("playing drums", "playing flute", "playing guitar", "playing harmonica", "playing harp"),
    *("playing ice hockey", "playing keyboard", "playing kickball", "playing monopoly"),
    *("playing organ", "playing paintball", "playing piano", "playing poker"),
    *("playing recorder", "playing saxophone", "playing squash or racquetball"),
    *("playing tennis", "playing trombone", "playing trumpet", "playing ukulele"),
    *("playing violin", "playing volleyball", "playing xylophone", "pole vault"),
    *("presenting weather forecast", "pull ups", "pumping fist", "pumping gas", "punching bag"),
    *("punching person (boxing)", "push up", "pushing car", "pushing cart"),
    *("pushing wheelchair", "reading book", "reading newspaper", "recording music"),
    *("riding a bike", "riding camel", "riding elephant", "riding mechanical bull"),
    *("riding mountain bike", "riding mule", "riding or walking with horse", "riding scooter"),
    *("riding unicycle", "ripping paper", "robot dancing", "rock climbing"),
    *("rock scissors paper", "roller skating", "running on treadmill", "sailing"),
    *("salsa dancing", "sanding floor", "scrambling eggs", "scuba diving", "setting table"),
    *("shaking hands", "shaking head", "sharpening knives", "sharpening pencil"),
    *("shaving head", "shaving legs", "shearing sheep", "shining shoes", "shooting basketball"),
    *("shooting goal (soccer)", "shot put", "shoveling snow", "shredding paper"),
    *("shuffling cards", "side kick", "sign language interpreting", "singing", "situp"),
    *("skateboarding", "ski jumping", "skiing (not slalom or crosscountry)"),
    *("skiing crosscountry", "skiing slalom", "skipping rope", "skydiving", "slacklining"),
    *("slapping", "sled dog racing", "smoking", "smoking hookah", "snatch weight lifting"),
    *("sneezing", "sniffing", "snorkeling", "snowboarding", "snowkiting", "snowmobiling"),
    *("somersaulting", "spinning poi", "spray painting", "spraying", "springboard diving"),
    *("squat", "sticking tongue out", "stomping grapes", "stretching arm", "stretching leg"),
    *("strumming guitar", "surfing crowd", "surfing water", "sweeping floor"),
    *("swimming backstroke", "swimming breast stroke", "swimming butterfly stroke"),
    *("swing dancing", "swinging legs", "swinging on something", "sword fighting", "tai chi"),
    *("taking a shower", "tango dancing", "tap dancing", "tapping guitar", "tapping pen"),
    *("tasting beer", "tasting food", "testifying", "texting", "throwing axe", "throwing ball"),
    *("throwing discus", "tickling", "tobogganing", "tossing coin", "tossing salad"),
    *("training dog", "trapezing", "trimming or shaving beard", "trimming trees"),
    *("triple jump", "tying bow tie", "tying knot (not on a tie)", "tying tie", "unboxing"),
    *("unloading truck", "using computer", "using remote controller (not gaming)"),
    *("using segway", "vault", "waiting in line", "walking the dog", "washing dishes"),
    *("washing feet", "washing hair", "washing hands", "water skiing", "water sliding"),
    *("watering plants", "waxing back", "waxing chest", "waxing eyebrows", "waxing legs"),
    *("weaving basket", "welding", "whistling", "windsurfing", "wrapping present", "wrestling"),
    *("writing", "yawning", "yoga", "zumba"),
)


@dataclass(frozen=True)
class Labels:
    """Class names of a data set."""

    names: tuple[str, ...]
    background: str | None  # the label that is not an event
    rate_hz: float | None  # rows per second of the published features, where it is unique


# THUMOS14, in the order of its published annotations. The features used with OadTR and CoOadTR
# have one row for every 6 frames of 24 fps video: 4 per second.
THUMOS14 = Labels(
    (
        "Background",
        "BaseballPitch",
        "BasketballDunk",
        "Billiards",
        "CleanAndJerk",
        "CliffDiving",
        "CricketBowling",
        "CricketShot",
        "Diving",
        "FrisbeeCatch",
        "GolfSwing",
        "HammerThrow",
        "HighJump",
        "JavelinThrow",
        "LongJump",
        "PoleVault",
        "Shotput",
        "SoccerPenalty",
        "TennisSwing",
        "ThrowDiscus",
        "VolleyballSpiking",
        "Ambiguous",
    ),
    "Background",
    4.0,
)
TVSERIES = Labels(
    (
        "background",
        "Pick something up",
        "Point",
        "Drink",
        "Stand up",
        "Run",
        "Sit down",
        "Read",
        "Smoke",
        "Drive car",
        "Open door",
        "Give something",
        "Use computer",
        "Write",
        "Go down stairway",
        "Close door",
        "Throw something",
        "Go up stairway",
        "Get in/out of car",
        "Hang up phone",
        "Eat",
        "Answer phone",
        "Dress up",
        "Clap",
        "Undress",
        "Kiss",
        "Fall/trip",
        "Wave",
        "Pour",
        "Punch",
        "Fire weapon",
    ),
    "background",
    None,
)
# Genres in alphabetical order. A token of CoTrans covers a quarter of a second.
GTZAN = Labels(
    (
        *("blues", "classical", "country", "disco", "hiphop"),
        *("jazz", "metal", "pop", "reggae", "rock"),
    ),
    None,
    4.0,
)
# Images and videos of objects; every frame is processed, at the frame rate of ImageNet VID.
VID = Labels(
    (
        *("airplane", "antelope", "bear", "bicycle", "bird", "bus", "car", "cattle", "dog"),
        *("domestic cat", "elephant", "fox", "giant panda", "hamster", "horse", "lion"),
        *("lizard", "monkey", "motorcycle", "rabbit", "red panda", "sheep", "snake"),
        *("squirrel", "tiger", "train", "turtle", "watercraft", "whale", "zebra"),
    ),
    None,
    30.0,
)
COCO = Labels(
    (
        *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck"),
        *("boat", "traffic light", "fire hydrant", "stop sign", "parking meter", "bench"),
        *("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra"),
        *("giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis"),
        *("snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard"),
        *("surfboard", "tennis racket", "bottle", "wine glass", "cup", "fork", "knife"),
        *("spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli", "carrot"),
        *("hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed"),
        *("dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard"),
        *("cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book"),
        *("clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush"),
    ),
    None,
    30.0,
)
# The rate depends on the network.
KINETICS400 = Labels(CLASSES, None, None)
# The verbs of EPIC-KITCHENS-100, in the order of its annotations.
EPIC_VERBS = Labels(
    (
        *("take", "put", "wash", "open", "close", "insert", "turn-on", "cut", "turn-off", "pour"),
        *("mix", "move", "remove", "throw", "dry", "shake", "scoop", "adjust", "squeeze", "peel"),
        *("empty", "press", "flip", "turn", "check", "scrape", "fill", "apply", "fold", "scrub"),
        *("break", "pull", "pat", "lift", "hold", "eat", "wrap", "filter", "look", "unroll"),
        *("sort", "hang", "sprinkle", "rip", "spray", "cook", "add", "roll", "search", "crush"),
        *("stretch", "knead", "divide", "set", "feel", "rub", "soak", "brush", "sharpen", "drop"),
        *("drink", "slide", "water", "gather", "attach", "turn-down", "coat", "transition"),
        *("wear", "measure", "increase", "unscrew", "wait", "lower", "form", "smell", "use"),
        *("grate", "screw", "let-go", "finish", "stab", "serve", "uncover", "unwrap", "choose"),
        *("lock", "flatten", "switch", "carry", "season", "unlock", "prepare", "bake", "mark"),
        *("bend", "unfreeze"),
    ),
    None,
    None,
)
# The actions of NTU RGB+D 60, in the order of their numbers, at the camera's rate.
NTU60 = Labels(
    (
        *("drink water", "eat meal/snack", "brushing teeth", "brushing hair", "drop", "pickup"),
        *("throw", "sitting down", "standing up (from sitting position)", "clapping", "reading"),
        *("writing", "tear up paper", "wear jacket", "take off jacket", "wear a shoe"),
        *("take off a shoe", "wear on glasses", "take off glasses", "put on a hat/cap"),
        *("take off a hat/cap", "cheer up", "hand waving", "kicking something"),
        *("reach into pocket", "hopping (one foot jumping)", "jump up"),
        *("make a phone call/answer phone", "playing with phone/tablet", "typing on a keyboard"),
        *("pointing to something with finger", "taking a selfie", "check time (from watch)"),
        *("rub two hands together", "nod head/bow", "shake head", "wipe face", "salute"),
        *("put the palms together", "cross hands in front (say stop)", "sneeze/cough"),
        *("staggering", "falling", "touch head (headache)"),
        *("touch chest (stomachache/heart pain)", "touch back (backache)"),
        *("touch neck (neckache)", "nausea or vomiting condition"),
        *("use a fan (with hand or paper)/feeling warm", "punching/slapping other person"),
        *("kicking other person", "pushing other person", "pat on back of other person"),
        *("point finger at the other person", "hugging other person"),
        *("giving something to other person", "touch other person's pocket", "handshaking"),
        *("walking towards each other", "walking apart from each other"),
    ),
    None,
    30.0,
)
# The actions of NTU RGB+D 120: the same, and sixty more.
NTU120 = Labels(
    (
        *NTU60.names,
        *("put on headphone", "take off headphone", "shoot at the basket", "bounce ball"),
        *("tennis bat swing", "juggling table tennis balls", "hush (quiet)", "flick hair"),
        *("thumb up", "thumb down", "make ok sign", "make victory sign", "staple book"),
        *("counting money", "cutting nails", "cutting paper (using scissors)"),
        *("snapping fingers", "open bottle", "sniff (smell)", "squat down", "toss a coin"),
        *("fold paper", "ball up paper", "play magic cube", "apply cream on face"),
        *("apply cream on hand back", "put on bag", "take off bag", "put something into a bag"),
        *("take something out of a bag", "open a box", "move heavy objects", "shake fist"),
        *("throw up cap/hat", "hands up (both hands)", "cross arms", "arm circles"),
        *("arm swings", "running on the spot", "butt kicks (kick backward)", "cross toe touch"),
        *("side kick", "yawn", "stretch oneself", "blow nose"),
        *("hit other person with something", "wield knife towards other person"),
        *("knock over other person (hit with body)", "grab other person's stuff"),
        *("shoot at other person with a gun", "step on foot", "high-five", "cheers and drink"),
        *("carry something with other person", "take a photo of other person"),
        *("follow other person", "whisper in other person's ear"),
        *("exchange things with other person", "support somebody with hand"),
        "finger-guessing game (playing rock-paper-scissors)",
    ),
    None,
    30.0,
)


def _shipped(file: str, background: str | None = None) -> Labels:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return Labels(tuple(text.splitlines()), background, None)


# The classes of AudioSet (Gemmeke et al., ICASSP 2017; class_labels_indices.csv, CC BY 4.0), and
# those of YAMNet, which leaves six of them out (yamnet_class_map.csv, Apache-2.0).
AUDIOSET_527 = _shipped("audioset_527.txt")
_NOT_IN_YAMNET = (
    *("Male speech, man speaking", "Female speech, woman speaking", "Battle cry"),
    *("Male singing", "Female singing", "Funny music"),
)
AUDIOSET_521 = Labels(
    tuple(name for name in AUDIOSET_527.names if name not in _NOT_IN_YAMNET), None, None
)
KINETICS600 = _shipped("kinetics_600.txt")
# ILSVRC 2012 (Russakovsky et al., IJCV 2015), in the order of the WordNet numbers; names are those
# of torchvision (BSD-3-Clause), none of which repeats.
IMAGENET_1000 = _shipped("imagenet_1000.txt")
# As MiniROAD numbers them; the rate depends on the features.
FINEACTION = _shipped("fineaction.txt", "background")
KNOWN = {
    "thumos14": THUMOS14,
    "tvseries": TVSERIES,
    "gtzan": GTZAN,
    "imagenet-vid": VID,
    "coco": COCO,
    "kinetics-400": KINETICS400,
    "epic-verbs": EPIC_VERBS,
    "ntu-60": NTU60,
    "ntu-120": NTU120,
    "audioset-521": AUDIOSET_521,
    "audioset-527": AUDIOSET_527,
    "fineaction": FINEACTION,
    "kinetics-600": KINETICS600,
    "imagenet-1k": IMAGENET_1000,
}


def read_labels(name: str) -> Labels:
    """Return the labels of a data set in ``KNOWN``, or of a text file with one label per line.

    Raises ModelError when it is neither, or the file contains repeated labels.
    """
    if name.lower() in KNOWN:
        return KNOWN[name.lower()]
    try:
        lines = Path(name).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"labels={name} is neither one of {', '.join(KNOWN)} nor a readable text file"
        ) from error
    return custom_labels(tuple(line.strip() for line in lines if line.strip()), name)


def custom_labels(names: tuple[str, ...], where: object) -> Labels:
    """Return labels with custom names; one called "background" is the background.

    Raises ModelError for a repeated name.
    """
    names = tuple(map(composed, names))
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ModelError(f"labels given twice: {', '.join(twice)}", where=where)
    background = next((name for name in names if name.lower() == "background"), None)
    return Labels(names, background, None)


def class_names(settings: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    """Return the class names in the arguments of an OadTR-like training script, or None.

    Raises ModelError when their number differs from that of the classifier's classes.
    """
    names = settings.get("class_index")
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
        return None
    if len(names) != classes:
        raise ModelError(f"the checkpoint's arguments name {len(names)} classes, it has {classes}")
    return tuple(names)
